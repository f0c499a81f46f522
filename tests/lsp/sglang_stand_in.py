"""Stand-ins for the parts of SGLang 0.5.23 that the plug-in touches, where SGLang is not installed.

Written from its interface: the registry of algorithms, what their base class keeps of a configuration, the parameters
of two of them, and the registry of hooks. ``make test-sglang`` runs the same plug-in in the real one.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor


@dataclass
class DllmConfig:
    algorithm: str
    algorithm_config: dict[str, Any]
    block_size: int
    mask_id: int
    first_done_first_out_mode: bool = False


class DllmAlgorithm:
    def __init__(self, config: DllmConfig) -> None:
        self.block_size, self.mask_id = config.block_size, config.mask_id
        self.fdfo = config.first_done_first_out_mode

    def init_step_state(self, forward_batch: Any) -> list[Any]:
        return [None] * forward_batch.batch_size


class LowConfidence(DllmAlgorithm):
    def __init__(self, config: DllmConfig) -> None:
        super().__init__(config)
        self.threshold = config.algorithm_config.get("threshold", 0.95)


class JointThreshold(DllmAlgorithm):
    def __init__(self, config: DllmConfig) -> None:
        super().__init__(config)
        given = config.algorithm_config
        self.threshold, self.edit_threshold = given.get("threshold", 0.5), given.get("edit_threshold", 0)
        self.max_post_edit_steps, self.penalty_lambda = given.get("max_post_edit_steps", 16), 0

    def init_step_state(self, forward_batch: Any) -> list[Any]:
        prompt = forward_batch.input_ids.view(-1, self.block_size) != self.mask_id
        return [{"post_edit_steps": 0, "finished": False, "prompt_mask": row} for row in prompt]


@dataclass
class Request:
    """What the scheduler knows of a request, of that what the hook reads."""

    origin_input_ids: list[int]
    max_new_tokens: int = 100
    stream: bool = True
    ends: tuple[int, ...] = ()
    stop_strs: tuple[str, ...] = ()
    output_ids: array = field(default_factory=lambda: array("q"))
    dllm_block_offset: int = 0
    tokenizer: Any = None
    eos_token_ids: tuple[int, ...] = ()
    dllm_config: Any = None
    sent: list[list[int]] = field(default_factory=list)

    @property
    def sampling_params(self) -> SimpleNamespace:
        return SimpleNamespace(
            max_new_tokens=self.max_new_tokens,
            stop_strs=self.stop_strs,
            stop_regex_strs=(),
            stop_token_ids=self.ends,
            ignore_eos=False,
        )


def scheduled(request: Request, block_size: int) -> Callable[[Any, Any, Any], None]:
    """As the scheduler treats the result of a pass: a complete block belongs to the request, and outputs are sent."""

    def process(scheduler: Any, batch: Any, result: Any) -> None:
        if result.accept_length_per_req_cpu[0]:
            prompt = max(0, len(request.origin_input_ids) - request.dllm_block_offset)
            request.output_ids.extend(result.next_token_ids[0][prompt:])
            request.dllm_block_offset += block_size
        request.sent.append(request.output_ids.tolist())

    return process


def forward_batch(ids: list[list[int]], prompt: list[list[bool]] | None = None) -> SimpleNamespace:
    """What a step reads of a `ForwardBatch`."""
    mask: Tensor | None = None if prompt is None else torch.tensor(prompt)
    return SimpleNamespace(batch_size=len(ids), input_ids=torch.tensor(ids).flatten(), dllm_prompt_mask=mask)


@contextmanager
def installed(version: str = "0.5.23") -> Iterator[SimpleNamespace]:
    """SGLang's modules, as long as this lasts; gives its algorithms by name and its hooks by target."""
    found = SimpleNamespace(algorithms={}, hooks={})
    hooks = SimpleNamespace(register=lambda target, hook, kind: found.hooks.update({target: (hook, kind)}))
    contents = {
        "sglang": {"__version__": version},
        "sglang.srt": {},
        "sglang.srt.dllm": {},
        "sglang.srt.dllm.algorithm": {"algo_name_to_cls": found.algorithms},
        "sglang.srt.dllm.algorithm.base": {"DllmAlgorithm": DllmAlgorithm},
        "sglang.srt.dllm.algorithm.low_confidence": {"LowConfidence": LowConfidence},
        "sglang.srt.dllm.algorithm.joint_threshold": {"JointThreshold": JointThreshold},
        "sglang.srt.plugins": {},
        "sglang.srt.plugins.hook_registry": {"HookRegistry": hooks, "HookType": SimpleNamespace(AROUND="around")},
    }
    ours = ("lsp.integrations.sglang.algorithms", "lsp.integrations.sglang.streaming")
    kept = {name: sys.modules.pop(name, None) for name in [*contents, *ours]}
    for name, names in contents.items():
        module = ModuleType(name)
        module.__dict__.update(names)
        module.__path__ = []
        sys.modules[name] = module
    try:
        yield found
    finally:
        for name, module in kept.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module
