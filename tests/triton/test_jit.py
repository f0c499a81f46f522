"""The launchers through Triton's JIT, which specialises what they pass: executed, in any order, without races.

Integers equal to 1, addresses and strides that are divisible by 16 or not, and missing arguments each give another
kernel.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lsp_kernels import Noise, PrefixRule, Vocabulary, reference
from lsp_kernels.triton import attention, block, commit, head
from lsp_kernels.triton.aot.builds import HIDDEN_SIZE, Build, representative
from tests.attention_cases import AttentionCase, attention_cases, check_attention, make_case
from tests.gpus import ARCHITECTURES, Moved, VirtualGpu, executed_architectures, gpu_of, times
from tests.head_cases import ByIdentity, factors
from tests.strategies import DTYPES, CommitCase, cases
from tests.support import check_commit, check_noisy_commit, check_noisy_stats, check_select, check_stats, ints, same
from tests.triton.served import Served

ROUNDED = 2.0  # the weights are rounded to 16 bits before they meet the values
SIZE = 160  # divisible by 16


# Logits, made by a function of their shape, and where sequences begin and end in them.
LAYOUTS: dict[str, Callable[[Callable[..., Tensor]], tuple[Tensor, dict[str, Tensor]]]] = {
    "one row": lambda new: (new(1, SIZE), {}),
    "one row of one sequence": lambda new: (new(1, 1, SIZE), {}),
    "one id": lambda new: (new(3, 1), {}),
    "one sequence": lambda new: (new(1, 5, SIZE), {"n_active": ints(4)}),
    "one row each": lambda new: (new(3, 1, SIZE), {"n_active": ints(1, 0, 1), "starts": ints(0, 0, 0)}),
    "batch": lambda new: (new(2, 6, SIZE), {"n_active": ints(6, 3), "starts": ints(0, 2)}),
    "transposed batch": lambda new: (new(6, 2, SIZE).transpose(0, 1), {}),
    "slice of a batch": lambda new: (new(2, 9, SIZE)[:, 2:8], {}),
    "one packed sequence": lambda new: (new(6, SIZE), {"cu_rows": ints(0, 6)}),
    "packed": lambda new: (new(9, SIZE), {"cu_rows": ints(0, 5, 5, 6, 9), "starts": ints(1, 0, 0, 1)}),
    "packed, with counts": lambda new: (new(6, SIZE), {"cu_rows": ints(0, 4, 6), "n_active": ints(6, 1)}),
    "aligned rows from an odd address": lambda new: (new(6 * SIZE + 1)[1:].view(6, SIZE), {}),
    "odd rows": lambda new: (new(6, SIZE + 11)[:, 3 : SIZE + 3], {}),
    "odd vocabulary": lambda new: (new(6, SIZE + 1), {}),
}
QUICK = ("one row", "transposed batch", "packed", "odd rows")  # the others: make test-targets
RULES = [PrefixRule(), PrefixRule(floor=0.1, no_delimiter="keep"), PrefixRule(window=1), PrefixRule(snap=False)]


def numbered(names: Iterable[str], quick: Sequence[str]) -> list[Any]:
    """Parameters of a test: the place of each name, run by the ordinary tests if it is among the quick ones."""
    marks = {name: () if name in quick else pytest.mark.targets for name in names}
    return [pytest.param(number, id=name, marks=marks[name]) for number, name in enumerate(names)]


@pytest.mark.gpu("sm_100")
@pytest.mark.parametrize("number", numbered(LAYOUTS, QUICK))
def test_every_layout_is_committed_and_scored(gpu: VirtualGpu, number: int) -> None:
    dtype, rule = DTYPES[number % 3], RULES[number % 4]
    logits, sequences = list(LAYOUTS.values())[number](lambda *shape: torch.randn(shape).to(dtype))
    size = logits.size(-1)
    vocabulary = Vocabulary(size, delimiters=range(0, size, 3), stops=[size - 1], suppress=[7][: number % 2])
    tables = vocabulary if rule.snap or number % 2 else None
    operations = Moved(Served(commit, splits=(1, 2, 4, 16)[number // 2 % 4]))
    committed = operations.commit_prefix(logits, **sequences, rule=rule, vocabulary=tables)
    for got, expected in zip(
        committed, reference.commit_prefix(logits, **sequences, rule=rule, vocabulary=tables), strict=True
    ):
        same(got, expected)
    chosen = operations.select_prefix(committed.margins, committed.tokens, **sequences, rule=rule, vocabulary=tables)
    same(chosen[0], committed.lengths)
    stats, expected = (
        operations.token_stats(logits, vocabulary=tables),
        reference.token_stats(logits, vocabulary=tables),
    )
    for got, wanted in zip(stats[:3], expected[:3], strict=True):
        same(got, wanted)
    torch.testing.assert_close(stats.log_odds, expected.log_odds, rtol=0, atol=1e-5)


splits = st.sampled_from([1, 2, 4, 16])


@pytest.mark.gpu
@times(300, virtual=40)
@given(case=cases(), splits=splits)
def test_any_commit_with_any_splits(gpu: VirtualGpu, case: CommitCase, splits: int) -> None:
    check_commit(Moved(Served(commit, splits)), case)


@pytest.mark.gpu
@times(300, virtual=40)
@given(case=cases(most=10), splits=splits, strided=st.booleans())
def test_any_statistics_and_selection(gpu: VirtualGpu, case: CommitCase, splits: int, strided: bool) -> None:
    check_stats(Moved(Served(commit, splits)), case)
    check_select(Moved(Served(commit)), case, strided, shift=0.0)


few = cases(sizes=(1, 17, 130, 1100), most=6)
seeds = st.integers(0, 2**32 - 1)


@pytest.mark.gpu
@times(300, virtual=15)
@given(case=few, splits=splits, seed=seeds)
def test_any_noisy_commit_with_any_splits(gpu: VirtualGpu, case: CommitCase, splits: int, seed: int) -> None:
    check_noisy_commit(Moved(Served(commit, splits)), case, *case.draws(seed))


@pytest.mark.gpu
@times(300, virtual=15)
@given(case=few, splits=splits, seed=seeds)
def test_any_noisy_statistics_and_entropy(gpu: VirtualGpu, case: CommitCase, splits: int, seed: int) -> None:
    check_noisy_stats(Moved(Served(commit, splits)), case, *case.draws(seed), id_offset=seed % 7)
    check_stats(Moved(Served(commit, splits)), case, entropy=True)


def one_token() -> AttentionCase:
    return make_case([1], [9], None, heads=(1, 1), dtype=torch.bfloat16, batched=True)


def shifted() -> AttentionCase:
    """Queries, keys and values that begin two bytes after a multiple of 16."""
    case = make_case([3, 4], [40, 0], [3, 2], heads=(2, 1), size=48, dtype=torch.float16)
    for name in ("q", "k", "v"):
        old = getattr(case, name)
        setattr(case, name, torch.cat([old.new_zeros(1), old.flatten()])[1:].view(old.shape))
    return case


ATTENTION: dict[str, tuple[AttentionCase, int]] = {
    "one token": (one_token(), 1),
    "ragged": (make_case([5, 0, 2], [70, 3, 0], [5, 0, 1], heads=(7, 1), dtype=torch.bfloat16, fused=True), 2),
    "odd addresses": (shifted(), 1),
    "batch": (make_case([6, 6], [40, 0], [6, 2], heads=(6, 2), dtype=torch.float16, batched=True, scale=-0.3), 3),
    "float32": (make_case([3, 2], [20, 1], None, heads=(2, 2)), 2),
    "one cache slot": (make_case([1], [0], [1], heads=(2, 1), dtype=torch.bfloat16, slack=0), 1),
    "sixteen query heads": (make_case([9], [300], [9], heads=(16, 1), dtype=torch.bfloat16, size=64), 3),
    "head dimension 256": (make_case([3], [40], [1], heads=(2, 1), size=256, dtype=torch.bfloat16), 2),
}


@pytest.mark.gpu("sm_120", attention=True)
@pytest.mark.parametrize("number", numbered(ATTENTION, ["one token", "ragged"]))
def test_every_layout_of_attention(gpu: VirtualGpu, number: int) -> None:
    case, splits = list(ATTENTION.values())[number]
    check_attention(Moved(Served(attention, splits)).suffix_attention, case, ROUNDED)


@pytest.mark.gpu(attention=True)
@times(100, virtual=10)
@given(case=attention_cases(longest_prefix=300, longest_suffix=20), splits=st.sampled_from([1, 2, 5]))
def test_any_attention_with_any_splits(gpu: VirtualGpu, case: AttentionCase, splits: int) -> None:
    check_attention(Moved(Served(attention, splits)).suffix_attention, case, ROUNDED)


# Rows are those of the greedy tiles: 1 or 16, 64 and more than 128.
HEADS: dict[str, tuple[int, int, torch.dtype]] = {
    "one row": (1, 48, torch.bfloat16),
    "one value": (3, 1, torch.float32),
    "odd size": (5, 37, torch.float16),
    "float32": (20, 40, torch.float32),
    "tile of 64": (50, 64, torch.bfloat16),
    "two tiles of 128": (140, 32, torch.float16),
}


@pytest.mark.gpu("sm_90", attention=True)
@pytest.mark.parametrize("number", numbered(HEADS, ["one row"]))
def test_every_tile_of_the_head(gpu: VirtualGpu, number: int) -> None:
    rows, size, dtype = list(HEADS.values())[number]
    hidden, weight = factors(rows, size, 300, dtype)
    hidden, weight = (x.round().to(dtype) for x in (hidden, weight))  # every sum is exact
    operations, rule = Moved(Served(head, 5)), PrefixRule(0.25, 0.5, snap=False)
    for got, expected in zip(
        operations.linear_commit_prefix(hidden, weight, rule=rule),
        reference.linear_commit_prefix(hidden, weight, rule=rule),
        strict=True,
    ):
        same(got, expected)
    stats, expected = operations.linear_token_stats(hidden, weight), reference.linear_token_stats(hidden, weight)
    for got, wanted in zip(stats[:3], expected[:3], strict=True):
        same(got, wanted)
    torch.testing.assert_close(stats.log_odds, expected.log_odds, rtol=0, atol=1e-5)


@pytest.mark.gpu(attention=True)
@times(100, virtual=10)
@given(case=cases(sizes=(1, 17, 130, 300), finite=True), programs=st.sampled_from([1, 3, 9]))
def test_any_commit_and_statistics_of_the_head(gpu: VirtualGpu, case: CommitCase, programs: int) -> None:
    check_commit(ByIdentity(Moved(Served(head, programs))), case)
    check_stats(ByIdentity(Moved(Served(head, programs))), case)


def usual_commits() -> None:
    """One call of each operation as decoding makes it, on packed rows."""
    size = 8 * SIZE
    vocabulary = Vocabulary(size, delimiters=[3], suppress=[5])
    logits, sequences = torch.randn(6, size).bfloat16(), {"cu_rows": ints(0, 4, 6), "starts": ints(1, 0)}
    operations = Moved(Served(commit, splits=8))
    out = operations.commit_prefix(logits, **sequences, rule=PrefixRule(), vocabulary=vocabulary)
    operations.token_stats(logits, vocabulary=vocabulary)
    noise = Noise(0.7, seeds=1, positions=torch.arange(6))
    operations.commit_prefix(logits, **sequences, rule=PrefixRule(), vocabulary=vocabulary, noise=noise)
    operations.select_prefix(out.margins, out.tokens, **sequences, rule=PrefixRule(), vocabulary=vocabulary)


def usual_attention() -> None:
    """Packed tokens with as many rows as the usual tile has."""
    case = make_case([9], [5], [9], heads=(7, 1), size=128, dtype=torch.bfloat16)
    case.run(Moved(Served(attention, splits=2)).suffix_attention)


def usual_head() -> None:
    """Few packed rows of the hidden size that the builds have."""
    hidden, weight = factors(6, HIDDEN_SIZE, SIZE, torch.bfloat16)
    options = {"rule": PrefixRule(), "vocabulary": Vocabulary(SIZE, delimiters=[3], suppress=[5])}
    Moved(Served(head, 2)).linear_commit_prefix(hidden, weight, ints(0, 4, 6), None, ints(1, 0), **options)


def usual_block() -> None:
    """Few rows of the hidden size that the builds have, and heads of the usual size side by side."""
    operations = Moved(Served(block))
    x, fused = torch.randn(3, HIDDEN_SIZE).bfloat16(), torch.randn(3, 6, 128).bfloat16()
    operations.add_norm(x, x[0].clone(), eps=1e-6, residual=x.clone())
    operations.rotate_(fused[:, :4], fused[:, 4:5], *torch.randn(2, 3, 64))
    operations.silu_mul(x)


USUAL = {"commit": usual_commits, "attention": usual_attention, "head": usual_head, "block": usual_block}


def code(ptx: str) -> str:
    """PTX without its comments and what it says about lines of the source."""
    text = re.sub(r"//[^\n]*|^\s*\.(?:loc|file)\b[^\n]*", "", ptx.split(".section")[0], flags=re.M)
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


ORDINARY = {"commit": ["sm_90"], "attention": ["sm_80"], "head": [], "block": ["sm_100"]}
PROVEN = [
    pytest.param(family, name, marks=() if name in ORDINARY[family] else pytest.mark.targets)
    for family, names in (
        ("commit", ARCHITECTURES),
        ("attention", executed_architectures()),
        ("head", executed_architectures()),
        ("block", ARCHITECTURES),
    )
    for name in names
]


@pytest.mark.parametrize(("family", "architecture"), PROVEN)
def test_the_usual_launches_are_the_builds_that_are_proven(family: str, architecture: str) -> None:
    proven: list[Build] = [made for made in representative(architecture) if made.family == family]
    with gpu_of(architecture) as gpu:
        USUAL[family]()
    launched = {(launch.name, code(launch.ptx)) for launch in gpu.driver.launches}
    assert launched == {(made.kernel.__name__, code(made.compile().text)) for made in proven}
