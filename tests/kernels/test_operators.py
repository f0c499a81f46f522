"""The operators themselves refuse bad operands, whoever serves them: C++, Triton, the reference or Meta.

Nothing but the operator stands between these calls and the kernels: engines call ``torch.ops.lsp`` directly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from lsp_kernels import Noise, PrefixRule, Vocabulary, _ops
from tests.attention_cases import assert_same_bits
from tests.support import OPERATORS, import_or_skip, ints

REFUSED = (RuntimeError, ValueError, TypeError)
VOCABULARY = Vocabulary(10, delimiters=[3], suppress=[1])
RULE = dict(
    zip(("alpha", "beta", "min_length", "window", "floor", "snap", "keep"), PrefixRule().arguments, strict=True)
)
ROOM = {"partials": None, "tickets": None}
TABLES = {"flags": VOCABULARY.flags, "suppressed": VOCABULARY.suppressed, "lowest": VOCABULARY.lowest}
NOISE = Noise(0.7, 3, torch.arange(6), 1).table
SAMPLING = {"id_offset": 0, "noise": NOISE}
SEQUENCES = {"cu_rows": ints(0, 2, 6), "n_active": ints(2, 4), "starts": ints(0, 0)}


RESULTS = {"out": torch.zeros(6, 4, 32), "lse": torch.zeros(6, 4)}


def zeros(*shape: int, **options: Any) -> torch.Tensor:
    return torch.zeros(*shape, **options)


def bits_of(x: float) -> int:
    return int(torch.tensor(x).view(torch.int32))


def sound() -> dict[str, dict[str, Any]]:
    """Good operands of every operator: 6 rows of two sequences, 10 ids; 4 heads of queries, 2 of keys, 8 slots."""
    caches = {"k_cache": zeros(2, 2, 8, 32), "v_cache": zeros(2, 2, 8, 32)}
    tokens = {"q": zeros(6, 4, 32), "k": zeros(6, 2, 32), "v": zeros(6, 2, 32)}
    lengths = {"cu_seqlens": ints(0, 2, 6), "prefix_lens": ints(1, 5), "append_lens": ints(2, 3), "slots": None}
    flags = {"flags": VOCABULARY.flags}
    return {
        "token_stats": {"logits": zeros(6, 10), **TABLES, **SAMPLING, "entropy": True, **ROOM},
        "select_prefix": {"margins": zeros(6), "tokens": zeros(6).long(), **SEQUENCES, **flags, **RULE},
        "commit_prefix": {
            "logits": zeros(6, 10),
            **SEQUENCES,
            **TABLES,
            **RULE,
            "noise": NOISE,
            "log_odds": True,
            **ROOM,
        },
        "linear_token_stats": {**FACTORS, **TABLES, **SAMPLING, "entropy": True, **ROOM},
        "linear_commit_prefix": {**FACTORS, **SEQUENCES, **TABLES, **RULE, "noise": NOISE, "log_odds": True, **ROOM},
        "suffix_attention": {**tokens, **caches, **lengths, "scale": 1.0, **ROOM},
        "suffix_attention_into": {**tokens, **caches, **lengths, "scale": 1.0, **ROOM, **RESULTS},
        "add_norm": {"x": zeros(6, 10), "residual": zeros(6, 10), "weight": zeros(10), "eps": 1e-6},
        "rotate_": {
            "q": tokens["q"],
            "k": tokens["k"],
            "cos": zeros(6, 16),
            "sin": zeros(6, 16),
            "q_norm": zeros(32),
            "k_norm": zeros(32),
            "eps": 1e-6,
        },
        "silu_mul": {"gate_up": zeros(6, 10)},
        "linear": {"x": zeros(6, 5), "weight": zeros(10, 5), "bias": zeros(10), "scales": None},
    }


FACTORS = {"hidden": torch.zeros(6, 5), "weight": torch.zeros(10, 5), "bias": torch.zeros(10)}
LINEAR = [
    {"hidden": zeros(())},
    {"hidden": zeros(5)},
    {"hidden": zeros(1, 1, 6, 5)},
    {"hidden": zeros(6, 4)},
    {"hidden": zeros(6, 0), "weight": zeros(10, 0)},
    {"hidden": zeros(6, 5).double()},
    {"hidden": zeros(5, 6).T},
    {"hidden": zeros(6, 10)[:, ::2]},
    {"hidden": zeros(1, 5).expand(2**40, 5)},
    {"weight": zeros(10)},
    {"weight": zeros(0, 5), "bias": None},
    {"weight": zeros(10, 5).half()},
    {"weight": zeros(5, 10).T},
    {"weight": zeros(1, 5).expand(2**40, 5)},
    {"bias": zeros(9)},
    {"bias": zeros(10, 1)},
    {"bias": zeros(10).bfloat16()},
    {"bias": zeros(20)[::2]},
]
LOGITS = [
    {"logits": zeros(())},
    {"logits": zeros(10)},
    {"logits": zeros(1, 1, 1, 1, 1, 1, 1, 1, 10)},
    {"logits": zeros(6, 0)},
    {"logits": zeros(6, 10).double()},
    {"logits": zeros(6, 10).int()},
    {"logits": zeros(10, 6).T},
    {"logits": zeros(6, 20)[:, ::2]},
    {"logits": zeros(1, 10).expand(2**40, 10)},
]
VOCABULARIES = [
    {"flags": zeros(9, dtype=torch.uint8)},
    {"flags": zeros(10)},
    {"flags": zeros(20, dtype=torch.uint8)[::2]},
    {"suppressed": torch.tensor([1])},
    {"suppressed": ints(1, 2, 3, 4)[::2]},
    {"suppressed": ints(1)[None]},
    {"lowest": -1},
    {"lowest": 10},
    {"lowest": 2**62},
]
BORDERS = [
    {"cu_rows": torch.tensor([0, 2, 6])},
    {"cu_rows": ints()},
    {"cu_rows": ints(0, 9, 2, 9, 6)[::2]},
    {"cu_rows": ints(0, 2, 6)[None]},
    {"n_active": ints(2)},
    {"n_active": torch.tensor([2, 4])},
    {"starts": ints(0, 0, 0)},
    {"starts": ints(0, 0)[:1].expand(2)},
]
RULES = [
    {"alpha": 0},
    {"alpha": 900_000},
    {"beta": -(2**62)},
    {"beta": 2_000_000},
    {"min_length": 0},
    {"min_length": 2**40},
    {"window": -1},
    {"floor": math.nan},
    {"floor": -1.0},
]
STATS = [
    {"margins": zeros(6).double()},
    {"margins": zeros(())},
    {"margins": zeros(1, 2, 3), "tokens": zeros(1, 2, 3).long()},
    {"tokens": zeros(6)},
    {"tokens": zeros(5).long()},
    {"tokens": zeros(6, 1).long()},
    {"flags": zeros(10)},
]
CACHES = ("k_cache", "v_cache")
TENSORS = [
    {"q": zeros(6, 4, 512), **dict.fromkeys("kv", zeros(6, 2, 512)), **dict.fromkeys(CACHES, zeros(2, 2, 8, 512))},
    {"q": zeros(())},
    {"q": zeros(2, 3, 4, 32)},
    {"cu_seqlens": None},
    {"q": zeros(6, 4, 32).int()},
    {"q": zeros(6, 4, 64)[..., ::2]},
    {"q": zeros(6, 0, 32)},
    {"q": zeros(6, 3, 32)},
    {"k": zeros(6, 2, 32).half()},
    {"k": zeros(5, 2, 32)},
    {"k": zeros(6, 2, 16)},
    {"k": zeros(6, 0, 32)},
    {"v": zeros(6, 1, 32)},
    {"v": zeros(6, 2, 32).bfloat16()},
    {"k_cache": zeros(1, 2, 8, 32)},
    {"k_cache": zeros(2, 1, 8, 32)},
    {"k_cache": zeros(2, 2, 8, 32).half()},
    {"k_cache": zeros(2, 2, 32, 8).mT},
    {"v_cache": zeros(2, 2, 7, 32)},
    {"v_cache": zeros(2, 2, 8)},
    {"cu_seqlens": torch.tensor([0, 2, 6])},
    {"cu_seqlens": ints()},
    {"prefix_lens": ints(1)},
    {"prefix_lens": torch.tensor([1, 5])},
    {"prefix_lens": ints(1, 9, 5)[::2]},
    {"append_lens": ints(2, 3, 0)},
    {"append_lens": zeros(2)},
    {"slots": ints(0)},
    {"slots": torch.tensor([0, 1])},
    {"slots": ints(0, 9, 1)[::2]},
    {"slots": ints(0, 1), "k_cache": zeros(2, 8, 32), "v_cache": zeros(2, 8, 32)},
    {"slots": ints(0, 1), "k_cache": zeros(0, 2, 8, 32), "v_cache": zeros(0, 2, 8, 32)},
    {"scale": math.nan},
    {"scale": math.inf},
]  # fmt: skip
OUTPUTS = [
    {"out": zeros(6, 4, 16)},
    {"out": zeros(24, 32)},
    {"out": zeros(6, 4, 32).half()},
    {"out": zeros(4, 6, 32).transpose(0, 1)},
    {"out": zeros(1, 4, 32).expand(6, 4, 32)},
    {"lse": zeros(6, 4, 1)},
    {"lse": zeros(6, 4).double()},
    {"lse": zeros(4, 6).T},
]
NOISES = [
    {"noise": NOISE.int()},
    {"noise": NOISE.double()},
    {"noise": NOISE[:5]},
    {"noise": NOISE[:, :2]},
    {"noise": NOISE[None]},
    {"noise": NOISE.T.contiguous().T},
]
OFFSETS = [{"id_offset": -1}, {"id_offset": 2**40}, {"id_offset": 2**31 - 10}]
NORMS = [
    {"x": zeros(())},
    {"x": zeros(1, 1, 6, 10)},
    {"x": zeros(6, 0), "residual": None, "weight": zeros(0)},
    {"x": zeros(6, 40000), "residual": None, "weight": zeros(40000)},
    {"x": zeros(6, 10).int()},
    {"x": zeros(10, 6).T},
    {"x": zeros(1, 10).expand(2**40, 10), "residual": None},
    {"x": zeros(2**20, 2**20, 0)},
    {"residual": zeros(6, 9)},
    {"residual": zeros(6, 1, 10)},
    {"residual": zeros(6, 10).half()},
    {"residual": zeros(10, 6).T},
    {"residual": zeros(10).expand(6, 10)},
    {"weight": zeros(9)},
    {"weight": zeros(1, 10)},
    {"weight": zeros(10).bfloat16()},
    {"weight": zeros(20)[::2]},
    {"eps": math.nan},
    {"eps": math.inf},
    {"eps": -1e-9},
]
ROTATIONS = [
    {"q": zeros(())},
    {"q": zeros(6, 32)},
    {"q": zeros(6, 4, 33), "k": zeros(6, 2, 33)},
    {"q": zeros(6, 4, 258), "k": zeros(6, 2, 258), "cos": zeros(6, 129), "sin": zeros(6, 129)},
    {"q": zeros(6, 4, 0), "k": zeros(6, 2, 0), "cos": zeros(6, 0), "sin": zeros(6, 0)},
    {"q": zeros(6, 4, 32).int()},
    {"q": zeros(6, 32, 4).mT},
    {"q": zeros(1, 4, 32).expand(6, 4, 32)},
    {"k": zeros(5, 2, 32)},
    {"k": zeros(6, 2, 16)},
    {"k": zeros(6, 2, 32).half()},
    {"k": zeros(6, 1, 32).expand(6, 2, 32)},
    {"cos": zeros(6, 32)},
    {"cos": zeros(5, 16)},
    {"cos": zeros(6, 1, 16)},
    {"cos": zeros(6, 16).double()},
    {"sin": zeros(6, 16).half()},
    {"sin": zeros(16, 6).T},
    {"q_norm": None},
    {"k_norm": None},
    {"q_norm": zeros(16)},
    {"q_norm": zeros(1, 32)},
    {"q_norm": zeros(32).half()},
    {"k_norm": zeros(64)[::2]},
    {"eps": math.nan},
    {"eps": -1e-9},
]
GATES = [
    {"gate_up": zeros(())},
    {"gate_up": zeros(10)},
    {"gate_up": zeros(6, 1, 10)},
    {"gate_up": zeros(6, 9)},
    {"gate_up": zeros(6, 0)},
    {"gate_up": zeros(6, 10).bool()},
    {"gate_up": zeros(10, 6).T},
    {"gate_up": zeros(1, 10).expand(2**40, 10)},
]
EIGHT_BITS = {"weight": zeros(10, 5, dtype=torch.int8), "scales": zeros(10)}
PRODUCTS = [
    {"x": zeros(())},
    {"x": zeros(5)},
    {"x": zeros(1, 1, 6, 5)},
    {"x": zeros(6, 4)},
    {"x": zeros(6, 0), "weight": zeros(10, 0)},
    {"x": zeros(6, 5).int()},
    {"x": zeros(5, 6).T},
    {"x": zeros(1, 5).expand(2**40, 5)},
    {"weight": zeros(10)},
    {"weight": zeros(0, 5), "bias": None},
    {"weight": zeros(10, 5).half()},
    {"weight": zeros(10, 5, dtype=torch.int8)},
    {"weight": zeros(5, 10).T},
    {"weight": zeros(1, 5).expand(2**40, 5)},
    {"bias": zeros(9)},
    {"bias": zeros(10, 1)},
    {"bias": zeros(10).bfloat16()},
    {"bias": zeros(20)[::2]},
    {"scales": zeros(10)},
    EIGHT_BITS | {"scales": zeros(9)},
    EIGHT_BITS | {"scales": zeros(10).half()},
    EIGHT_BITS | {"scales": zeros(20)[::2]},
]
BAD = {
    "token_stats": [*LOGITS, *VOCABULARIES, *NOISES, *OFFSETS],
    "select_prefix": [*STATS, *BORDERS, *RULES],
    "commit_prefix": [*LOGITS, *VOCABULARIES, *BORDERS, *RULES, *NOISES, {"logits": zeros(1, 6, 10)}],
    "linear_token_stats": [*LINEAR, *VOCABULARIES, *NOISES, *OFFSETS],
    "linear_commit_prefix": [*LINEAR, *VOCABULARIES, *BORDERS, *RULES, *NOISES, {"hidden": zeros(1, 6, 5)}],
    "suffix_attention": TENSORS,
    "suffix_attention_into": [*TENSORS, *OUTPUTS],
    "add_norm": NORMS,
    "rotate_": ROTATIONS,
    "silu_mul": GATES,
    "linear": PRODUCTS,
}
CASES = [
    pytest.param(name, wrong, id=f"{name} {next(iter(wrong))} {i}") for name in BAD for i, wrong in enumerate(BAD[name])
]


def in_cpp(name: str) -> Callable[..., Any]:
    if _ops.cpp is None:
        pytest.skip("no C++ extension")
    return getattr(OPERATORS, name)


def in_triton(name: str) -> Callable[..., Any]:
    if name == "linear":
        pytest.skip("torch's own products serve GPUs")
    import_or_skip("lsp_kernels.triton.ticket")
    family = "attention" if "attention" in name else "head" if name.startswith("linear") else "commit"
    family = "block" if name in ("add_norm", "rotate_", "silu_mul") else family
    return getattr(import_or_skip(f"lsp_kernels.triton.{family}"), name)


def in_the_reference(name: str) -> Callable[..., Any]:
    return _ops._served_by_reference(name, getattr(_ops, f"_{name}"))


def on_meta(name: str) -> Callable[..., Any]:
    def moved(x: Any) -> Any:
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta") if torch.is_tensor(x) else x

    return lambda *operands: getattr(OPERATORS, name)(*map(moved, operands))


SERVERS = [in_cpp, in_triton, in_the_reference, on_meta]


@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server.__name__)
@pytest.mark.parametrize(("name", "wrong"), CASES)
def test_shapes_dtypes_strides_and_sizes_are_refused_by_name(server, name: str, wrong: dict[str, Any]) -> None:
    operands = sound()[name]
    with pytest.raises(REFUSED, match=rf"Invalid .*\b({'|'.join([*operands, 'rows'])})"):
        server(name)(*(operands | wrong).values())


@pytest.mark.parametrize("server", [in_cpp, in_the_reference, on_meta], ids=lambda server: server.__name__)
@pytest.mark.parametrize("name", sound())
def test_good_operands_are_served(server, name: str) -> None:
    server(name)(*sound()[name].values())


VALUES = [
    *({"cu_rows": ints(*borders)} for borders in ([0, 4, 2], [-1, 2, 6], [0, 2, 7], [5, -9, 6])),
    *({"n_active": ints(*counts)} for counts in ([-1, 4], [2, 2**31 - 1], [9, 4])),
    *({"starts": ints(*starts)} for starts in ([-1, 0], [3, 0], [0, 2**31 - 1], [2, 0])),
]
LENGTHS = [
    *({"slots": ints(*slots)} for slots in ([0, 0], [1, 2], [-1, 0], [-(2**31), 2**31 - 1])),
    *({"cu_seqlens": ints(*borders)} for borders in ([0, 4, 2], [1, 2, 6], [0, 2, 7], [0, 9, 6], [-9, 2**31 - 1, 6])),
    *({"prefix_lens": ints(*lengths)} for lengths in ([-1, 5], [1, 9], [-(2**31), 2**31 - 1])),
    *({"append_lens": ints(*lengths)} for lengths in ([3, 3], [2, 4], [-1, 3], [2, 2**31 - 1])),
]


@pytest.mark.parametrize("server", [in_cpp, in_the_reference], ids=lambda server: server.__name__)
@pytest.mark.parametrize("name", ["select_prefix", "commit_prefix"])
@pytest.mark.parametrize("wrong", VALUES, ids=str)
def test_values_on_a_cpu_are_refused_by_name(server, name: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(REFUSED, match=r"Invalid (cu_rows|n_active|starts)"):
        server(name)(*(sound()[name] | wrong).values())


@pytest.mark.parametrize("server", [in_cpp, in_the_reference], ids=lambda server: server.__name__)
@pytest.mark.parametrize("name", [name for name in sound() if "noise" in sound()[name]])
@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        (1, -1, "positions|passes"),
        (1, 2**31, "positions"),
        (1, -(2**63), "passes"),
        (2, bits_of(math.nan), "temperature"),
        (2, bits_of(-1.0), "temperature"),
        (2, bits_of(math.inf), "temperature"),
    ],
)
def test_noise_that_cannot_be_is_refused_by_name(server, name: str, column: int, value: int, message: str) -> None:
    operands = sound()[name]
    operands["noise"] = NOISE.clone()
    operands["noise"][4, column] = value
    with pytest.raises(REFUSED, match=rf"Invalid ({message}) of noise"):
        server(name)(*operands.values())


@pytest.mark.parametrize("server", [in_cpp, in_the_reference], ids=lambda server: server.__name__)
@pytest.mark.parametrize("wrong", LENGTHS, ids=str)
def test_lengths_on_a_cpu_are_refused_and_nothing_is_written(server, wrong: dict[str, Any]) -> None:
    operands = sound()["suffix_attention"] | wrong
    operands["k"], operands["v"] = torch.ones(2, 6, 2, 32)
    with pytest.raises(REFUSED, match=rf"Invalid {next(iter(wrong))}"):
        server("suffix_attention")(*operands.values())
    assert not operands["k_cache"].any()
    assert not operands["v_cache"].any()


def test_values_are_checked_in_compiled_code_too() -> None:
    compiled = torch.compile(OPERATORS.commit_prefix, fullgraph=True, backend="aot_eager")
    operands = sound()["commit_prefix"]
    assert_same_bits(compiled(*operands.values())[0], OPERATORS.commit_prefix(*operands.values())[0])
    with pytest.raises(RuntimeError, match=r"Invalid cu_rows\[2\]"):
        compiled(*(operands | {"cu_rows": ints(0, 4, 2)}).values())
