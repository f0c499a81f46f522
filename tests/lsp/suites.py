"""Stand-ins for the parts of other codebases that `lsp.integrations` touches, where these are not installed.

Each stands for a codebase as it was in 2026 and is written from its interface: the registries of d2Cache and of
DLLM-AccelEval with their silence about ImportErrors, their frames and caches; ParallelBench's output and its measures;
the contract of vLLM's dllm-plugin. test_suites.py also runs the real ones, where environment variables name them.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tests.support import ROOT

INVALID_TOKEN_ID = -100


def shown(title: str) -> str:
    """The code that docs/integrate.md shows under this comment."""
    page = (ROOT / "docs/integrate.md").read_text("utf-8")
    return page.split(f"<!-- {title} -->\n```\n")[1].split("```")[0]


class Moved:
    """Frames and deltas move between devices and dtypes."""

    def to(self, device: object = None, dtype: torch.dtype | None = None) -> Any:
        def moved(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(moved, value))
            if not isinstance(value, Tensor):
                return value
            return value.to(device=device, dtype=dtype if value.is_floating_point() else value.dtype)

        return replace(self, **{name: moved(value) for name, value in vars(self).items()})


@dataclass(frozen=True)
class FrameDelta(Moved):
    """What a pass changed. Sequences that commit nothing are finished, and have no row in the tensors."""

    transfer_index: tuple[Tensor, ...]
    decoded_tokens: Tensor
    confidence: Tensor | None = None
    extra: dict = field(default_factory=dict)

    def __post_init__(self) -> None:
        active = sum(index.numel() > 0 for index in self.transfer_index)
        if len(self.decoded_tokens) != active or self.confidence.shape != self.decoded_tokens.shape:
            raise ValueError(f"expected rows for {active} active sequences, got {list(self.decoded_tokens.shape)}")


@dataclass(frozen=True)
class Frame(Moved):
    """The state between two passes."""

    prompts: Tensor
    generated_tokens: Tensor
    confidence: Tensor
    steps: Tensor

    @classmethod
    def create_initial_frame(cls, prompts: Tensor, gen_length: int, mask_token_id: int) -> Frame:
        shape = len(prompts), gen_length
        return cls(prompts, torch.full(shape, mask_token_id), torch.full(shape, -torch.inf), torch.full(shape, -1))

    def clone(self) -> Frame:
        return replace(self, **{name: value.clone() for name, value in vars(self).items()})

    def apply_delta(self, delta: FrameDelta, mask_token_id: int | None = None) -> Frame:
        new, row = self.clone(), 0
        for b, index in enumerate(delta.transfer_index):
            if index.numel():
                new.steps[b, index] = int(self.steps[b].max()) + 1
                new.generated_tokens[b, index] = delta.decoded_tokens[row, index]
                new.confidence[b, index] = delta.confidence[row, index]
                row += 1
        return new


@dataclass(frozen=True)
class DecodeRecord:
    """All frames of a generation."""

    initial_frame: Frame
    deltas: list[FrameDelta]
    block_length: int | None = None

    @property
    def num_steps(self) -> int:
        return len(self.deltas)

    def __getitem__(self, number: int) -> Frame:
        frame = self.initial_frame
        for delta in self.deltas[: number if number >= 0 else number + len(self.deltas) + 1]:
            frame = frame.apply_delta(delta)
        return frame


class Cache:
    """A cache that computes the rows of the block alone after the block's first pass, like their prefix cache."""

    def __init__(self, model_config: object) -> None:
        self.active_q_mask: Tensor | None = None
        self.active_seq_mask: Tensor | None = None
        self.heard: list[str] = []

    def on_block_start(self, block_mask: Tensor, frame: Frame) -> None:
        self.heard.append("block")
        self.active_q_mask = None

    def on_step_start(self, block_mask: Tensor, frame: Frame) -> None:
        self.heard.append("step")
        if self.active_q_mask is not None:
            self.active_q_mask = self.rows(block_mask, frame)

    def on_step_end(self, block_mask: Tensor, frame: Frame, delta: FrameDelta) -> None:
        self.heard.append("stepped")
        self.active_q_mask = self.rows(block_mask, frame)

    def on_block_end(self, block_mask: Tensor, frame: Frame, deltas: list[FrameDelta]) -> None:
        self.heard.append(f"{len(deltas)} passes")

    def rows(self, block_mask: Tensor, frame: Frame) -> Tensor:
        return torch.nn.functional.pad(block_mask, (frame.prompts.size(1), 0))

    def seen(self, logits: Tensor) -> Tensor:
        """Zeros where nothing was computed. From here on the rows are those of the sequences in the pass."""
        if self.active_q_mask is None:
            return logits
        self.active_q_mask = self.active_q_mask[self.active_seq_mask]
        return logits * self.active_q_mask[..., None]


class Theirs(torch.nn.Module):
    """Somebody's model with the signature of the suites' models; its logits may be shifted as Dream's are."""

    def __init__(self, model: Any, shifted: bool = False) -> None:
        super().__init__()
        self.model, self.shifted, self.config, self.dtype = model, shifted, model.config, torch.float32
        self.device = torch.device("cpu")

    def forward(self, ids: Tensor, attention_mask: Any = None, past_key_values: Any = None, use_cache: bool = False):
        logits = self.model(ids).logits
        logits = torch.cat([logits[:, 1:], logits[:, :1]], dim=1) if self.shifted else logits
        assert use_cache == (past_key_values is not None)
        return SimpleNamespace(logits=logits if past_key_values is None else past_key_values.seen(logits))


def prepare_logits_for_generation(model: Theirs, logits: Tensor) -> Tensor:
    return torch.cat([logits[:, :1], logits[:, :-1]], dim=1) if model.shifted else logits


class Registry:
    """Strategies by name: d2Cache calls it, DLLM-AccelEval its `gen_strategy`."""

    def __init__(self) -> None:
        self.found: dict[str, Callable[..., DecodeRecord]] = {}

    def gen_strategy(self, name: str) -> Callable[[Callable], Callable]:
        def add(function: Callable) -> Callable:
            self.found[name] = function
            return function

        return add

    __call__ = gen_strategy

    def trigger(self, folder: Path) -> None:
        """Imports every file of the folder of strategies. One that raises an ImportError is passed over."""
        for path in folder.glob("*.py"):
            with suppress(ImportError):
                importlib.import_module(f"src.generation.{path.stem}")

    def generate(self, model: Any, input_ids: Tensor, *, strategy: str, **settings: Any) -> DecodeRecord:
        """Calls a strategy with the settings that it knows."""
        if strategy not in self.found:
            raise NotImplementedError(f"Generation strategy '{strategy}' is not implemented.")
        known = inspect.signature(self.found[strategy]).parameters
        return self.found[strategy](
            model, input_ids, **{name: value for name, value in settings.items() if name in known}
        )


@contextmanager
def modules(**contents: dict[str, Any]) -> Iterator[None]:
    """Modules of these names (``__`` for a dot) with these contents, as long as the context lasts."""
    before = dict(sys.modules)
    for name, values in contents.items():
        module = ModuleType(name.replace("__", "."))
        module.__path__ = []
        vars(module).update(values)
        sys.modules[module.__name__] = module
    try:
        yield
    finally:
        for name in set(sys.modules) - set(before):
            if name.split(".")[0] in ("src", "model", "vllm_dllm_plugin"):
                del sys.modules[name]


@contextmanager
def frames(folder: Path) -> Iterator[Registry]:
    """d2Cache or DLLM-AccelEval, with strategies from a folder, which are imported at once."""
    register = Registry()
    names = {"Frame": Frame, "FrameDelta": FrameDelta, "DecodeRecord": DecodeRecord}
    utils = {"register": register, "prepare_logits_for_generation": prepare_logits_for_generation}
    parts = {
        "src": {},
        "src__frame": {**names, "INVALID_TOKEN_ID": INVALID_TOKEN_ID},
        "src__utils": {"register": register},
        "src__generation": {},
        "src__generation__utils": utils,
    }
    with modules(**parts):
        sys.modules["src.generation"].__path__ = [str(folder)]
        register.trigger(folder)
        yield register


@dataclass
class DLLMOutput:
    """What a model of ParallelBench returns."""

    output: str
    output_full: dict | None = None
    nfe: int = 0
    input_ids: Tensor | None = None
    output_ids: Tensor | None = None
    history: list | None = None
    pad_token_id: int | None = None
    decoding_order: list | None = None
    decoding_order_corrs: dict | None = None


def decode_history(tokenizer: Any, history: Sequence[Tensor] | None, input_length: int = 0) -> list[str] | None:
    return history and [tokenizer.decode(h.squeeze(0)[input_length:], skip_special_tokens=False) for h in history]


def compute_decoding_order_correlation_from_history(tokenizer: Any, history: Sequence[Tensor]) -> tuple[list, dict]:
    """In which pass each position was decoded; here the share of neighbours in order stands for their correlations."""
    order = torch.stack([h.squeeze(0) == tokenizer.mask_token_id for h in history]).sum(0).tolist()
    pairs = list(pairwise(order))
    return order, {"in_order": sum(a <= b for a, b in pairs) / max(len(pairs), 1)}


@contextmanager
def parallel_bench(patch: str) -> Iterator[Callable[..., Any]]:
    """ParallelBench with these lines at the beginning of its `load_model`."""
    scope: dict[str, Any] = {}
    rest = '    raise ValueError(f"Model {model_name} is not supported.")\n'
    exec(f"def load_model(model_name, **kwargs):\n{patch}{rest}", scope)
    utils = {
        "decode_history": decode_history,
        "compute_decoding_order_correlation_from_history": compute_decoding_order_correlation_from_history,
    }
    with modules(model={}, model__base_model={"DLLMOutput": DLLMOutput}, model__model_utils=utils):
        yield scope["load_model"]


@dataclass(frozen=True)
class RemaskStepResult:
    """What a step commits, and the block that the next one sees."""

    committed_token_ids: tuple[int, ...]
    next_input_block: tuple[int, ...]


@contextmanager
def dllm_plugin(draft_size: int = 32) -> Iterator[None]:
    """The plugin's contract between a block's logits and a policy, with its checks."""

    def validate_remask_step_result(result: RemaskStepResult) -> None:
        if len(result.next_input_block) != draft_size or len(result.committed_token_ids) > draft_size:
            raise ValueError(f"next_input_block must have length DRAFT_SIZE={draft_size}, got {result}")

    def remask_after_block_forward(
        *, input_draft: Sequence[int], logits: Any, policy: Any, remasking_config: Any = None
    ) -> RemaskStepResult:
        if len(input_draft) != draft_size or len(logits) != draft_size:
            raise ValueError(f"expected a draft and logits of {draft_size} rows")
        result = policy.apply(input_draft=input_draft, logits=logits, remasking_config=remasking_config)
        validate_remask_step_result(result)
        return result

    base = {"RemaskStepResult": RemaskStepResult, "validate_remask_step_result": validate_remask_step_result}
    handoff = {"remask_after_block_forward": remask_after_block_forward}
    with modules(vllm_dllm_plugin={}, vllm_dllm_plugin__remasking=handoff, vllm_dllm_plugin__remasking__base=base):
        yield
