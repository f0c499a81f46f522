"""Suffix attention of every CPU path against the definition in float64."""

from __future__ import annotations

import math
import os
import re

import pytest
import torch
from hypothesis import given
from torch._inductor.utils import run_and_get_code

import lsp_kernels
from lsp_kernels import suffix_attention
from lsp_kernels._namespace import NAMESPACE
from tests.attention_cases import (
    HIDDEN,
    TOLERANCES,
    AttentionCase,
    appended,
    assert_same_bits,
    attention_cases,
    check_attention,
    check_hidden,
    check_lse,
    check_merge,
    check_nothing_seen,
    check_stated,
    hide,
    make_case,
    random_case,
)
from tests.support import OPERATORS, examples, ints


@examples(60)
@given(case=attention_cases())
def test_no_less_exact_than_torch_and_the_cache_is_exact(backend, case: AttentionCase) -> None:
    check_attention(backend.suffix_attention, case)


LARGE = [
    pytest.param([64], [1024], [64], {"heads": (4, 4), "size": 128}, id="llada"),
    pytest.param([64], [1024], [32], {"heads": (14, 2), "size": 128}, id="dream"),
    pytest.param([1], [5000], [1], {"heads": (1, 1), "size": 64}, id="one query, long prefix"),
    pytest.param([33, 0, 64, 8], [64, 700, 1024, 0], [33, 0, 1, 8], {"heads": (4, 2), "size": 96}, id="ragged"),
    pytest.param([300], [0], [300], {"heads": (2, 1), "size": 32}, id="prefill"),
    pytest.param([20], [400], [0], {"heads": (3, 3), "size": 256, "fused": True}, id="wide heads"),
    pytest.param([64], [1024], [64], {"heads": (2, 2), "size": 64, "spread": 3.0}, id="peaked"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("suffixes", "prefixes", "appends", "options"), LARGE)
def test_at_real_lengths(backend, suffixes, prefixes, appends, options, dtype) -> None:
    check_attention(backend.suffix_attention, make_case(suffixes, prefixes, appends, dtype=dtype, **options))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_no_less_exact_than_torch_in_any_of_many_cases(backend, dtype) -> None:
    """With weights rounded to 16 bits, as torch's are, about one case in ten would be less exact than torch's."""
    for seed in range(round(200 * float(os.environ.get("LSP_EXAMPLES", "0.5")))):
        check_attention(backend.suffix_attention, random_case(seed, dtype))


@pytest.mark.parametrize("rows", [1, 2, 4, 5, 8])
@pytest.mark.parametrize("size", [32, 48, 80, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_few_queries(backend, dtype, size: int, rows: int) -> None:
    for prefix, scale in ((0, None), (15, -0.3), (143, None), (700, 0.2)):
        case = make_case([rows], [prefix], [rows], heads=(2, 2), size=size, dtype=dtype, scale=scale, seed=prefix)
        check_attention(backend.suffix_attention, case)
    grouped = make_case([1], [200], [1], heads=(2 * rows, 2), size=size, dtype=dtype, fused=True)
    check_attention(backend.suffix_attention, grouped)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("suffixes", "prefixes", "appends", "options"), LARGE[:-1])
def test_the_stated_tolerances_hold(backend, suffixes, prefixes, appends, options, dtype) -> None:
    check_stated(backend.suffix_attention, make_case(suffixes, prefixes, appends, dtype=dtype, **options))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("heads", [(2, 1), (28, 4)])
def test_neither_threads_nor_the_rest_of_the_batch_change_a_bit(backend, heads, dtype) -> None:
    if backend is lsp_kernels.reference:
        pytest.skip("torch's own products may differ with the number of threads")
    suffixes, prefixes = [5, 40, 0, 17], [1200, 77, 9, 0]
    case = make_case(suffixes, prefixes, suffixes, heads=heads, size=64, dtype=dtype)
    threads = torch.get_num_threads()
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        results.append(case.with_fresh_cache().run(backend.suffix_attention))
    torch.set_num_threads(threads)
    for result in results[1:]:
        assert_same_bits(result, results[0])
    for b, where in case.sequences():
        alone = AttentionCase(
            case.q[where], case.k[where], case.v[where], *(x[b : b + 1].clone() for x in (case.k_cache, case.v_cache)),
            ints(0, suffixes[b]), case.prefix_lens[b : b + 1], case.append_lens[b : b + 1],
        )  # fmt: skip
        assert_same_bits(alone.run(backend.suffix_attention), results[0][where])


def test_odd_strides_are_respected(backend) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        case = make_case([7, 3], [20, 5], [7, 0], heads=(2, 1), size=48, dtype=dtype)
        for name in ("q", "k", "v", "k_cache", "v_cache"):
            tensor = getattr(case, name)
            padded = torch.full((*tensor.shape[:-1], tensor.size(-1) + 3), math.nan, dtype=dtype)[..., 2:-1]
            setattr(case, name, padded.copy_(tensor))
        check_attention(backend.suffix_attention, case)


def test_a_nan_stays_in_its_head_and_sequence(backend) -> None:
    case = make_case([6, 6], [30, 30], None, heads=(2, 2), size=32)
    case.k[2, 1] = math.nan
    out = case.run(backend.suffix_attention)
    assert out[:6, 1].isnan().all()
    out[:6, 1] = 0
    assert not out.isnan().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("suffixes", "prefixes", "slots"), HIDDEN)
def test_keys_that_score_minus_infinity_have_no_weight(backend, suffixes, prefixes, slots, dtype) -> None:
    case = make_case(suffixes, prefixes, suffixes, heads=(6, 2), size=64, dtype=dtype)
    check_hidden(backend.suffix_attention, case, slots)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("prefix", [0, 30, 200, 1400])
def test_a_query_that_sees_nothing_gives_zero(backend, prefix: int, dtype: torch.dtype) -> None:
    check_nothing_seen(backend.suffix_attention, make_case([5], [prefix], [5], heads=(6, 2), size=64, dtype=dtype))


@examples(30)
@given(case=attention_cases())
def test_the_log_sum_exp_is_that_of_the_scores(backend, case: AttentionCase) -> None:
    if case.q.numel():
        check_lse(backend.suffix_attention, case)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", [{}, {"batched": True}, {"scale": 0.5}], ids=str)
def test_two_partial_attentions_are_merged_by_their_log_sum_exps(backend, dtype, options) -> None:
    check_merge(backend.suffix_attention, make_case([5, 5], [40, 700], [5, 2], heads=(6, 2), dtype=dtype, **options))


@pytest.mark.parametrize("return_lse", [False, True])
def test_the_output_goes_where_the_caller_says(backend, return_lse: bool) -> None:
    case = make_case([5, 3], [40, 7], [5, 2], heads=(6, 2))
    expected = case.with_fresh_cache().run(backend.suffix_attention)
    out = torch.full_like(expected, math.nan)
    given = case.with_fresh_cache().run(backend.suffix_attention, out=out, return_lse=return_lse)
    assert (given[0] if return_lse else given) is out
    assert_same_bits(out, expected)


@pytest.mark.parametrize("prefix", [30, 1400])
def test_a_nan_is_not_taken_for_nothing_seen(backend, prefix: int) -> None:
    case = make_case([5], [prefix], None, heads=(1, 1))
    hide(case, slice(0, prefix))
    case.k[..., 0] = -math.inf
    case.k_cache[0, 0, 7] = math.nan
    assert case.run(backend.suffix_attention).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_one_key_returns_its_value(backend, dtype) -> None:
    case = make_case([1], [0], [1], heads=(3, 1), size=64, dtype=dtype)
    torch.testing.assert_close(case.run(backend.suffix_attention), case.v.expand(1, 3, 64), rtol=1e-6, atol=0)


def test_unused_tokens_join_no_sequence_and_give_zero(backend) -> None:
    case = make_case([5, 0, 3, 0], [40, 3, 7, 0], [5, 0, 2, 0], heads=(6, 2), unused=9)  # the unused ones hold NaN
    out, lse = case.with_fresh_cache().run(backend.suffix_attention, return_lse=True)
    without = make_case([5, 0, 3, 0], [40, 3, 7, 0], [5, 0, 2, 0], heads=(6, 2))
    for name in ("q", "k", "v"):
        setattr(without, name, getattr(case, name)[:8])
    without.k_cache, without.v_cache = case.k_cache.clone(), case.v_cache.clone()
    assert_same_bits(out[:8], without.run(backend.suffix_attention))
    assert not out[8:].any()
    assert (lse[8:] == -math.inf).all()


def test_a_batch_of_no_sequences_has_unused_tokens_alone(backend) -> None:
    out = make_case([], [], None, unused=4).run(backend.suffix_attention)
    assert out.shape == (4, 2, 32)
    assert not out.any()


def test_slots_only_say_where_a_prefix_is(backend) -> None:
    plain = make_case([5, 2, 3], [40, 3, 7], [5, 0, 2], heads=(6, 2))
    expected = plain.with_fresh_cache().run(backend.suffix_attention)
    moved = plain.with_fresh_cache()
    moved.slots = ints(2, 0, 1)
    order = moved.slots.argsort()
    moved.k_cache, moved.v_cache = plain.k_cache[order].clone(), plain.v_cache[order].clone()
    assert_same_bits(moved.run(backend.suffix_attention), expected)
    assert_same_bits(moved.k_cache[moved.slots], appended(plain, plain.k_cache, plain.k))


def test_an_empty_sequence_may_have_any_row(backend) -> None:
    case = make_case([5, 0, 0], [9, 9, 0], [5, 0, 0], slots=[1, 2, 0])
    expected = case.with_fresh_cache().run(backend.suffix_attention)
    case.slots = ints(1, 1, 1)
    assert_same_bits(case.run(backend.suffix_attention), expected)


def test_an_empty_batch_and_an_empty_pass(backend) -> None:
    for suffixes in ([], [0], [0, 0, 0]):
        case = make_case(suffixes, [3] * len(suffixes), suffixes)
        assert case.with_fresh_cache().run(backend.suffix_attention).shape == (0, 2, 32)


def attend(case: AttentionCase) -> torch.Tensor:
    return case.run(suffix_attention)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("slots", [None, [2, 0]])
@pytest.mark.parametrize("batched", [False, True])
def test_opcheck(batched: bool, slots: list[int] | None, dtype: torch.dtype) -> None:
    case = make_case([5, 5], [4, 9], [2, 5], batched=batched, slots=slots, dtype=dtype)
    case.k_cache.nan_to_num_(), case.v_cache.nan_to_num_()
    tensors = (case.q, case.k, case.v, case.k_cache, case.v_cache, case.cu_seqlens)
    arguments = (*tensors, case.prefix_lens, case.append_lens, case.slots, 0.3, None, None)
    torch.library.opcheck(OPERATORS.suffix_attention.default, arguments)


@pytest.mark.parametrize("with_lse", [False, True])
def test_opcheck_with_an_output(with_lse: bool) -> None:
    case = make_case([5, 5], [4, 9], [2, 5])
    case.k_cache.nan_to_num_(), case.v_cache.nan_to_num_()
    tensors = (case.q, case.k, case.v, case.k_cache, case.v_cache, case.cu_seqlens)
    results = (torch.zeros_like(case.q), torch.zeros(case.q.shape[:-1]) if with_lse else None)
    arguments = (*tensors, case.prefix_lens, case.append_lens, case.slots, 0.3, None, None, *results)
    torch.library.opcheck(OPERATORS.suffix_attention_into.default, arguments)


def test_the_log_sum_exp_and_the_output_compile_as_one_graph() -> None:
    case = make_case([5, 3], [4, 9], [2, 3])

    def both(case: AttentionCase, out: torch.Tensor) -> torch.Tensor:
        _, lse = case.run(suffix_attention, out=out, return_lse=True)
        return lse

    results = []
    for call in (both, torch.compile(both, fullgraph=True)):
        lse = call(case.with_fresh_cache(), out := torch.zeros_like(case.q))
        results.append((out, lse))
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(eager, compiled)


def test_compiles_as_one_graph_that_copies_no_cache() -> None:
    def layers(case: AttentionCase) -> torch.Tensor:
        out = case.q
        for _ in range(3):
            out = suffix_attention(
                out, case.k, case.v, case.k_cache, case.v_cache, case.cu_seqlens, case.prefix_lens, case.append_lens
            )
        return out

    case = make_case([5, 3], [4, 9], [2, 3])
    eager = layers(expected := case.with_fresh_cache())
    (compiled, (source, *_)) = run_and_get_code(torch.compile(layers, fullgraph=True), ours := case.with_fresh_cache())
    torch.testing.assert_close(compiled, eager)
    assert_same_bits(ours.k_cache, expected.k_cache)
    assert source.count(f"{NAMESPACE}.suffix_attention") >= 3
    assert str(tuple(case.k_cache.shape)) not in "".join(re.findall("empty_strided.*", source))


def test_meta_tensors_and_float64() -> None:
    case = make_case([5, 3], [4, 9], [2, 3])
    meta = AttentionCase(*(x.to("meta") for x in vars(case).values() if x is not None))
    assert attend(meta).shape == case.q.shape
    wide = case.double()
    out = attend(wide)
    assert out.dtype == torch.float64
    assert_same_bits(wide.k_cache.float(), appended(case, case.k_cache, case.k))
