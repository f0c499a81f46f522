"""A plug-in for SGLang: its block diffusion models decoded by the longest stable prefix, and fused confidences.

SGLang finds `register` by the entry point of this package, in every process that it starts, and then knows these
algorithms: ``LongestStablePrefix`` (`prefix`), ``LongestStablePrefixCanvas`` (`canvas`, for LLaDA in `models`),
``FusedLowConfidence`` and ``FusedJointThreshold`` (`fused`). The settings of a YAML file are read by `settings`,
`streaming` sends what is committed before its block is complete.

Only `algorithms` and `models` import SGLang; the rest can be imported and tested without it.
"""

from __future__ import annotations

import logging

__all__ = ["TESTED_VERSION", "register"]

TESTED_VERSION = "0.5.23"


def register() -> None:
    """Adds the algorithms to SGLang's own, and the hook that streams what is committed; called by SGLang."""
    import sglang
    from sglang.srt.dllm.algorithm import algo_name_to_cls

    from lsp.integrations.sglang import algorithms, canvas, streaming

    if sglang.__version__ != TESTED_VERSION:
        logging.getLogger(__name__).warning(
            "The plug-in lsp was tested with SGLang %s; this is %s", TESTED_VERSION, sglang.__version__
        )
    for algorithm in algorithms.ALGORITHMS:
        algo_name_to_cls[algorithm.__name__] = algorithm
    streaming.install()
    canvas.install()
