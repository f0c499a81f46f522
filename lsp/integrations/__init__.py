"""Drop-ins for other codebases, with their own signatures: one import changes and the rest of their code stays.

`fast_dllm` and `dinfer` replace the softmax of a step by one read of the logits, with the same results. `llada`,
`dream` and `dinfer` bring the longest stable prefix into loops that were written for something else. `d2cache`,
`accel_eval` and `parallel_bench` bring it into suites that compare decoders, `dllm_plugin` into vLLM's plugin.
`transformers` brings the prefix cache into models of that package, `lm_eval` a model into lm-evaluation-harness; these
two import the other package, and so they have to be imported by themselves. `ray` has workers for Ray Data. `sglang` is
a plug-in that SGLang imports.
"""

from lsp.integrations import (
    accel_eval,
    d2cache,
    dinfer,
    dllm_plugin,
    dream,
    fast_dllm,
    llada,
    parallel_bench,
)

__all__ = ["accel_eval", "d2cache", "dinfer", "dllm_plugin", "dream", "fast_dllm", "llada", "parallel_bench"]
