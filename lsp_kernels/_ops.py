"""The operators of torch: schemas, Meta functions, the autograd policy, and which backend serves which device.

The reference is registered for every device. A faster backend is registered for its own device and takes precedence
there: the C++ extension for CPU, Triton for CUDA (NVIDIA and ROCm), which is imported with the first call on a GPU.
No operation is differentiable: the Autograd key falls through, and no output requires a gradient.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import reference
from ._namespace import NAMESPACE
from ._operands import SHAPES, check_values, explain
from ._shapes import batch_of
from .reference.head import linear_logits
from .rule import PrefixRule
from .triton.configs.device import unknown_architecture

RULE = "int alpha_ppm, int beta_ppm, int min_length, int window, float? floor, bool snap, bool keep"
WORKSPACE = "Tensor(a!)? partials, Tensor(b!)? tickets"
CACHES = "Tensor(c!) k_cache, Tensor(d!) v_cache"
SEQUENCES = "Tensor? cu_rows, Tensor? n_active, Tensor? starts"
TABLES = "Tensor? flags, Tensor? suppressed, int lowest"
LINEAR = "Tensor hidden, Tensor weight, Tensor? bias"
STATS = "int id_offset, Tensor? noise, bool entropy"
COMMIT = "Tensor? noise, bool log_odds"
SIX = ", ".join(["Tensor"] * 6)
SCHEMAS = {
    # Last in the results: the entropy if it was asked for, and the clean logits if there is noise; else empty tensors.
    "token_stats": f"(Tensor logits, {TABLES}, {STATS}, {WORKSPACE}) -> ({SIX})",
    "select_prefix": f"(Tensor margins, Tensor tokens, {SEQUENCES}, Tensor? flags, {RULE}) -> (Tensor, Tensor)",
    # Last in the results: the log-odds if they were asked for; else an empty tensor.
    "commit_prefix": f"(Tensor logits, {SEQUENCES}, {TABLES}, {RULE}, {COMMIT}, {WORKSPACE}) -> ({SIX})",
    # The same two of float32 logits, hidden times weight, that are never stored.
    "linear_token_stats": f"({LINEAR}, {TABLES}, {STATS}, {WORKSPACE}) -> ({SIX})",
    "linear_commit_prefix": f"({LINEAR}, {SEQUENCES}, {TABLES}, {RULE}, {COMMIT}, {WORKSPACE}) -> ({SIX})",
    "suffix_attention": f"(Tensor q, Tensor k, Tensor v, {CACHES}, Tensor? cu_seqlens, Tensor prefix_lens, "
    f"Tensor? append_lens, Tensor? slots, float scale, {WORKSPACE}) -> Tensor",
    # The same into memory of the caller, with the log-sum-exp of the scores if there is a tensor for it.
    "suffix_attention_into": f"(Tensor q, Tensor k, Tensor v, {CACHES}, Tensor? cu_seqlens, Tensor prefix_lens, "
    f"Tensor? append_lens, Tensor? slots, float scale, {WORKSPACE}, Tensor(e!) out, Tensor(f!)? lse) -> ()",
    "add_norm": "(Tensor x, Tensor(a!)? residual, Tensor weight, float eps) -> Tensor",
    "rotate_": "(Tensor(a!) q, Tensor(b!) k, Tensor cos, Tensor sin, Tensor? q_norm, Tensor? k_norm, float eps) -> ()",
    "silu_mul": "(Tensor gate_up) -> Tensor",
    "linear": "(Tensor x, Tensor weight, Tensor? bias, Tensor? scales) -> Tensor",
}

library = torch.library.Library(NAMESPACE, "DEF")
operators = getattr(torch.ops, NAMESPACE)  # call `.default` of each: it saves the search for an overload


CPP_REPAIR = (
    "To build it, have a C++ compiler (g++ or clang++) and reinstall lsp-kernels from its source; with "
    "LSP_REQUIRE_EXTENSION=1 in the environment pip shows why a build fails."
)
NOT_ON_WINDOWS = "It is not built on Windows: there is one for Linux, also under WSL."
REPAIRS = {
    "cpu": NOT_ON_WINDOWS if sys.platform == "win32" else CPP_REPAIR,
    "cuda": "To have it: pip install 'lsp-kernels[triton]'.",
}


class SlowBackendWarning(UserWarning):
    """The reference serves an operation although a faster backend exists for the device."""


warnings.simplefilter("once", SlowBackendWarning)


class Tables(NamedTuple):
    """The tables of a `Vocabulary`, as an operator receives them."""

    flags: Tensor | None
    suppressed: Tensor | None
    lowest: int


def rule_arguments(rule: PrefixRule) -> tuple[Any, ...]:
    """A rule as the schemas take it: seven arguments in their order."""
    return rule.arguments


class Table(NamedTuple):
    """The table of a `Noise`, as an operator receives it."""

    table: Tensor


def _noise(table: Tensor | None) -> Table | None:
    return None if table is None else Table(table)


def _results(rows: Tensor, found: Iterable[Tensor | None]) -> tuple[Tensor, ...]:
    """The results of an operator: an empty tensor for what was not asked for."""
    return tuple(rows.new_empty(0, dtype=torch.float32) if each is None else each for each in found)


def _token_stats(
    logits: Tensor,
    flags: Tensor | None,
    suppressed: Tensor | None,
    lowest: int,
    id_offset: int,
    noise: Tensor | None,
    entropy: bool,
    *_: Any,
) -> tuple[Tensor, ...]:
    tables = Tables(flags, suppressed, lowest)
    found = reference.token_stats(logits, vocabulary=tables, id_offset=id_offset, noise=_noise(noise), entropy=entropy)
    return _results(logits, found)


def _select_prefix(
    margins: Tensor,
    tokens: Tensor,
    cu_rows: Tensor | None,
    n_active: Tensor | None,
    starts: Tensor | None,
    flags: Tensor | None,
    *rule: Any,
) -> tuple[Tensor, Tensor]:
    return reference.select_prefix(
        margins,
        tokens,
        cu_rows,
        n_active,
        starts,
        rule=PrefixRule.of(*rule),
        vocabulary=Tables(flags, None, 0),
    )


def _commit_prefix(
    logits: Tensor,
    cu_rows: Tensor | None,
    n_active: Tensor | None,
    starts: Tensor | None,
    flags: Tensor | None,
    suppressed: Tensor | None,
    lowest: int,
    *rest: Any,
) -> tuple[Tensor, ...]:
    *rule, noise, log_odds, _partials, _tickets = rest
    found = reference.commit_prefix(
        logits,
        cu_rows,
        n_active,
        starts,
        rule=PrefixRule.of(*rule),
        vocabulary=Tables(flags, suppressed, lowest),
        noise=_noise(noise),
        log_odds=log_odds,
    )
    return _results(logits, found)


def _linear_token_stats(hidden: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    return _token_stats(linear_logits(hidden, weight, bias), *rest)


def _linear_commit_prefix(hidden: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    return _commit_prefix(linear_logits(hidden, weight, bias), *rest)


def _suffix_attention(*arguments: Any) -> Tensor:
    *tensors, slots, scale, _partials, _tickets = arguments
    out: Tensor = reference.suffix_attention(*tensors, slots=slots, scale=scale)
    return out


def _suffix_attention_into(*arguments: Any) -> None:
    *tensors, slots, scale, _partials, _tickets, out, lse = arguments
    _, sums = reference.suffix_attention(*tensors, slots=slots, scale=scale, out=out, return_lse=True)
    if lse is not None:
        lse.copy_(sums)


def _add_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    return reference.add_norm(x, weight, eps=eps, residual=residual)


def _rotate_(*operands: Any) -> None:
    *tensors, q_norm, k_norm, eps = operands
    reference.rotate_(*tensors, q_norm=q_norm, k_norm=k_norm, eps=eps)


_silu_mul = reference.silu_mul


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, scales: Tensor | None) -> Tensor:
    return reference.linear(x, weight, bias, scales=scales)


def _empty_rows(like: Tensor, *dtypes: torch.dtype) -> tuple[Tensor, ...]:
    """Results with a value for every row of [..., V] or [..., d]."""
    return tuple(like.new_empty(like.shape[:-1], dtype=dtype) for dtype in dtypes)


def _meta_token_stats(logits: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    SHAPES["token_stats"](logits, *arguments)
    return _meta_stats(logits, *arguments[4:6])


def _meta_linear_token_stats(hidden: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    SHAPES["linear_token_stats"](hidden, *arguments)
    return _meta_stats(hidden, *arguments[6:8])


def _meta_stats(rows: Tensor, noise: Tensor | None, entropy: bool) -> tuple[Tensor, ...]:
    asked = (rows.shape[:-1] if there else (0,) for there in (entropy, noise is not None))
    always = _empty_rows(rows, torch.int64, *[torch.float32] * 3)
    return (*always, *(rows.new_empty(shape, dtype=torch.float32) for shape in asked))


def _meta_lengths(rows: Tensor, batch: Any) -> tuple[Tensor, Tensor]:
    return rows.new_empty((batch,), dtype=torch.int32), rows.new_empty((batch,), dtype=torch.bool)


def _meta_select_prefix(margins: Tensor, tokens: Tensor, cu_rows: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor]:
    SHAPES["select_prefix"](margins, tokens, cu_rows, *rest)
    return _meta_lengths(margins, batch_of(margins, margins.dim(), cu_rows))


def _meta_commit_prefix(logits: Tensor, cu_rows: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    SHAPES["commit_prefix"](logits, cu_rows, *rest)
    return _meta_commit(logits, cu_rows, log_odds=rest[-3])


def _meta_linear_commit_prefix(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, cu_rows: Tensor | None, *rest: Any
) -> tuple[Tensor, ...]:
    SHAPES["linear_commit_prefix"](hidden, weight, bias, cu_rows, *rest)
    return _meta_commit(hidden, cu_rows, log_odds=rest[-3])


def _meta_commit(rows: Tensor, cu_rows: Tensor | None, log_odds: bool) -> tuple[Tensor, ...]:
    lengths = _meta_lengths(rows, batch_of(rows, rows.dim() - 1, cu_rows))
    odds = rows.new_empty(rows.shape[:-1] if log_odds else (0,), dtype=torch.float32)
    return (*lengths, *_empty_rows(rows, torch.int64, torch.float32, torch.float32), odds)


def _meta_suffix_attention(q: Tensor, *arguments: Any) -> Tensor:
    SHAPES["suffix_attention"](q, *arguments)
    return q.new_empty(q.shape)


def _meta_suffix_attention_into(*arguments: Any) -> None:
    SHAPES["suffix_attention_into"](*arguments)


def _meta_add_norm(x: Tensor, *arguments: Any) -> Tensor:
    SHAPES["add_norm"](x, *arguments)
    return x.new_empty(x.shape)


def _meta_rotate_(*arguments: Any) -> None:
    SHAPES["rotate_"](*arguments)


def _meta_silu_mul(gate_up: Tensor) -> Tensor:
    SHAPES["silu_mul"](gate_up)
    return gate_up.new_empty(gate_up.size(0), gate_up.size(1) // 2)


def _meta_linear(x: Tensor, weight: Tensor, *arguments: Any) -> Tensor:
    SHAPES["linear"](x, weight, *arguments)
    return x.new_empty((*x.shape[:-1], weight.size(0)))


def _served_by_reference(name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
    """The reference as a backend, without gradients. It warns once if the device's faster backend cannot serve."""

    @functools.wraps(operation)
    def serve(rows: Tensor, *arguments: Any) -> Any:
        device = rows.device.type
        reason = {"cpu": cpp_reason, "cuda": triton_reason(rows.device)}.get(device)
        if reason is not None:
            slow = f"{reason}; the PyTorch reference serves {device} tensors, several times slower"
            warnings.warn(f"{slow}{repair(device)}", SlowBackendWarning, stacklevel=4)
        explain(name, rows, *arguments)
        with torch.no_grad():
            return operation(rows, *arguments)

    return serve


def _register(family: str, name: str, plain: Callable[..., Any], meta: Callable[..., Any]) -> None:
    library.define(name + SCHEMAS[name])
    library.impl(name, _served_by_reference(name, plain), "CompositeExplicitAutograd")
    library.impl(name, torch.library.fallthrough_kernel, "Autograd")
    if triton_reason() is None and importlib.util.find_spec(f".triton.{family}", __package__):
        library.impl(name, _served_by_triton(family, name, plain), "CUDA")
    torch.library.register_fake(f"{NAMESPACE}::{name}", meta, lib=library)


def _served_by_triton(family: str, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """The Triton launcher as a backend; the reference on a GPU for which the kernels are not proven.

    Triton is imported with the first call.
    """
    reference_serves = _served_by_reference(name, plain)

    def serve(rows: Tensor, *arguments: Any) -> Any:
        if triton_reason(rows.device) is not None:
            return reference_serves(rows, *arguments)
        launch = getattr(importlib.import_module(f".triton.{family}", __package__), name)
        check_values(name, rows, *arguments)
        with torch.cuda.device(rows.device):
            return launch(rows, *arguments)

    return serve


@functools.cache
def triton_reason(device: torch.device | None = None) -> str | None:
    """Why Triton cannot serve, or cannot serve a device; None if it can. Only GPUs are asked for their architecture."""
    try:
        if importlib.util.find_spec("triton") is None:
            return "Triton is not installed"
    except (ImportError, ValueError) as error:
        return f"Triton cannot be found ({error})"
    if device is not None and device.type == "cuda" and (name := unknown_architecture(device)):
        return f"the Triton kernels are not proven for the architecture {name}"
    return None


def repair(device: str) -> str:
    """What to do to have the faster backend of a device type, as a further sentence; empty if nothing helps."""
    missing = cpp is None if device == "cpu" else triton_reason() is not None
    return f". {REPAIRS[device]}" if missing else ""


def _load_cpp() -> tuple[ModuleType | None, str | None]:
    """The C++ extension, or None and the reason why it cannot be loaded."""
    try:
        return importlib.import_module("._C", __package__), None
    except ModuleNotFoundError as error:
        return None, f"the C++ extension is missing ({error})"
    except ImportError as error:
        return None, f"the C++ extension cannot be loaded ({error})"


_register("commit", "token_stats", _token_stats, _meta_token_stats)
_register("commit", "select_prefix", _select_prefix, _meta_select_prefix)
_register("commit", "commit_prefix", _commit_prefix, _meta_commit_prefix)
_register("head", "linear_token_stats", _linear_token_stats, _meta_linear_token_stats)
_register("head", "linear_commit_prefix", _linear_commit_prefix, _meta_linear_commit_prefix)
_register("attention", "suffix_attention", _suffix_attention, _meta_suffix_attention)
_register("attention", "suffix_attention_into", _suffix_attention_into, _meta_suffix_attention_into)
_register("block", "add_norm", _add_norm, _meta_add_norm)
_register("block", "rotate_", _rotate_, _meta_rotate_)
_register("block", "silu_mul", _silu_mul, _meta_silu_mul)
_register("product", "linear", _linear, _meta_linear)
cpp, cpp_reason = _load_cpp()
