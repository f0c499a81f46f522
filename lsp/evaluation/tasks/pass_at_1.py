"""Verdicts on programs by lm-eval's own metric, and by nothing else: it runs what a model has written.

lm-eval asks for consent twice: ``--confirm_run_unsafe_code``, and ``HF_ALLOW_CODE_EVAL=1`` in the environment. The
metric comes from the hub.
"""

from __future__ import annotations

from typing import Any

from lsp.extras import needed_by


def with_metric(dataset: Any) -> Any:
    """The documents, once the metric is there: what cannot be judged is not decoded first."""
    _metric()
    return dataset


def humaneval(doc: dict[str, Any], results: list[list[str]]) -> dict[str, float]:
    return _verdict(f"{doc['test']}\ncheck({doc['entry_point']})", results)


def mbpp(doc: dict[str, Any], results: list[list[str]]) -> dict[str, float]:
    return _verdict("\n".join([*doc.get("test_imports", ()), *doc["test_list"]]), results)


def _metric() -> Any:
    """The metric of lm-eval, which tries it on a program of its own when it is loaded."""
    with needed_by("an evaluation"):
        from lm_eval.tasks.humaneval.utils import pass_at_k

    return pass_at_k


def _verdict(tests: str, results: list[list[str]]) -> dict[str, float]:
    return {"pass_at_1": float(_metric()([tests], [results[0]], k=[1])["pass@1"])}
