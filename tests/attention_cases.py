"""Cases of suffix attention, and what every backend must do with them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from lsp_kernels import reference
from tests.support import ints

Call = Callable[..., Tensor]


@dataclass(repr=False)
class AttentionCase:
    """Arguments of one call. What no query may see is NaN: the cache past the prefix, tokens past the last border."""

    q: Tensor
    k: Tensor
    v: Tensor
    k_cache: Tensor
    v_cache: Tensor
    cu_seqlens: Tensor | None
    prefix_lens: Tensor
    append_lens: Tensor | None
    scale: float | None = None
    slots: Tensor | None = None

    def __repr__(self) -> str:
        tensors = {name: list(x.shape) for name, x in vars(self).items() if isinstance(x, Tensor) and x.dim() > 1}
        lengths = {name: x.tolist() for name, x in vars(self).items() if isinstance(x, Tensor) and x.dim() == 1}
        return (
            f"AttentionCase({tensors}, {lengths}, {self.q.dtype}, scale={self.scale}, largest {self.q.abs().max():.1f})"
        )

    def with_fresh_cache(self) -> AttentionCase:
        return replace(self, k_cache=self.k_cache.clone(), v_cache=self.v_cache.clone())

    def double(self) -> AttentionCase:
        wide = (x.double() for x in (self.q, self.k, self.v, self.k_cache, self.v_cache))
        return AttentionCase(*wide, self.cu_seqlens, self.prefix_lens, self.append_lens, self.scale, self.slots)

    def run(self, call: Call, **options: object) -> Tensor:
        """Calls with these tensors; the caches are written."""
        tensors = (self.q, self.k, self.v, self.k_cache, self.v_cache)
        lengths = (self.cu_seqlens, self.prefix_lens, self.append_lens)
        return call(*tensors, *lengths, scale=self.scale, slots=self.slots, **options)

    def row(self, b: int) -> int:
        """The row of the cache that sequence b has."""
        return b if self.slots is None else int(self.slots[b])

    def unused(self) -> slice:
        """The tokens past the last border."""
        return slice(self.q.size(0), None) if self.cu_seqlens is None else slice(int(self.cu_seqlens[-1]), None)

    def sequences(self) -> list[tuple[int, slice | int]]:
        """Each sequence's index, and where its tokens are."""
        if self.cu_seqlens is None:
            return [(b, b) for b in range(self.q.size(0))]
        return [(b, slice(*borders)) for b, borders in enumerate(pairwise(self.cu_seqlens.tolist()))]


def make_case(
    suffixes: list[int],
    prefixes: list[int],
    appends: list[int] | None,
    *,
    heads: tuple[int, int] = (2, 2),
    size: int = 32,
    dtype: torch.dtype = torch.float32,
    slack: int = 3,
    batched: bool = False,
    fused: bool = False,
    scale: float | None = None,
    spread: float = 1.0,
    slots: list[int] | None = None,
    unused: int = 0,
    seed: int = 0,
) -> AttentionCase:
    """A case with `heads` (queries, keys) of `size`.

    `fused` makes q, k and v views of one projection. `slots` are the rows of the cache, which has one more than the
    highest. `unused` tokens follow the last border.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return (spread * torch.randn(*shape, generator=generator)).to(dtype)

    batch, (hq, hkv) = len(suffixes), heads
    tokens = (batch, suffixes[0]) if batched else (sum(suffixes) + unused,)
    if fused:
        q, k, v = normal(*tokens, hq + 2 * hkv, size).split([hq, hkv, hkv], dim=-2)
    else:
        q, k, v = normal(*tokens, hq, size), normal(*tokens, hkv, size), normal(*tokens, hkv, size)
    longest = max((p + a for p, a in zip(prefixes, appends or [0] * batch, strict=True)), default=0)
    rows = range(batch) if slots is None else slots
    k_cache, v_cache = normal(2, batch if slots is None else max(slots, default=0) + 2, hkv, longest + slack, size)
    for row in range(k_cache.size(0)):
        prefix = prefixes[rows.index(row)] if row in rows else 0
        k_cache[row, :, prefix:] = v_cache[row, :, prefix:] = float("nan")
    if not batched:
        q[sum(suffixes) :] = k[sum(suffixes) :] = v[sum(suffixes) :] = float("nan")
    borders = ints(0, *torch.tensor(suffixes, dtype=torch.int64).cumsum(0).tolist())
    return AttentionCase(
        q, k, v, k_cache, v_cache, None if batched else borders, ints(*prefixes),
        None if appends is None else ints(*appends), scale, None if slots is None else ints(*slots),
    )  # fmt: skip


@st.composite
def attention_cases(
    draw: st.DrawFn,
    *,
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16, torch.float16),
    sizes: tuple[int, ...] = (32, 48, 64, 96, 128, 256),
    longest_prefix: int = 300,
    longest_suffix: int = 70,
) -> AttentionCase:
    """Ragged and equal batches, also of empty sequences, any group, prefix 0, nothing or everything appended."""
    batched = draw(st.booleans())
    batch = draw(st.integers(1, 4))
    edges = st.sampled_from([0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129])
    suffix = st.one_of(edges, st.integers(0, longest_suffix)).filter(lambda n: n <= longest_suffix)
    prefix = st.one_of(edges, st.integers(0, longest_prefix)).filter(lambda n: n <= longest_prefix)
    suffixes = draw(suffix.map(lambda n: [n] * batch) if batched else st.lists(suffix, min_size=batch, max_size=batch))
    appends = draw(st.one_of(st.none(), st.just(suffixes), st.tuples(*(st.integers(0, n) for n in suffixes)).map(list)))
    size = draw(st.sampled_from(sizes))
    sharpness = draw(st.sampled_from([None, None, 0.5, 2.0, 0.0, -1.0]))  # of the softmax; more makes float32 inexact
    slots = draw(st.one_of(st.none(), st.permutations(range(batch + 2)).map(lambda rows: rows[:batch])))
    hkv, group = draw(st.sampled_from([(1, 1), (1, 7), (2, 1), (2, 2), (3, 1), (2, 3), (1, 16)]))
    return make_case(
        suffixes,
        draw(st.lists(prefix, min_size=batch, max_size=batch)),
        appends,
        heads=(hkv * group, hkv),
        size=size,
        dtype=draw(st.sampled_from(dtypes)),
        slack=draw(st.integers(0, 5)),
        batched=batched,
        fused=draw(st.booleans()),
        scale=None if sharpness is None else sharpness * size**-0.5,
        spread=draw(st.sampled_from([1.0, 1.0, 2.0, 0.1])),
        slots=slots,
        unused=0 if batched else draw(st.sampled_from([0, 0, 1, 16, 40])),
        seed=draw(st.integers(0, 2**32)),
    )


def random_case(seed: int, dtype: torch.dtype) -> AttentionCase:
    """One sequence: few or many queries and keys, and a softmax from flat to one that a few keys share."""
    draw = random.Random(seed)
    suffix = draw.choice([1, 1, 2, 3, 4, 5, 16, 17, 33, 64, 70])
    prefix = draw.choice([0, 1, 15, 17, 64, 127, 129, 200, 300, 500, 1024])
    hkv, group = draw.choice([(1, 1), (2, 1), (4, 1), (1, 7), (2, 2)])
    size = draw.choice([32, 48, 64, 96, 128, 256])
    sharpness, spread = draw.choice([0.0, 0.5, 1.0, 1.0, 2.0, 4.0, -1.0]), draw.choice([1.0, 1.0, 2.0, 0.1])
    return make_case(
        [suffix], [prefix], None,
        heads=(hkv * group, hkv), size=size, dtype=dtype, scale=sharpness * size**-0.5, spread=spread, seed=seed,
    )  # fmt: skip


def check_attention(call: Call, case: AttentionCase, factor: float = 1.0, **options: object) -> Tensor:
    """The output is at most `factor` times as wrong as torch's own, and the cache is right to the bit."""
    ours = case.with_fresh_cache()
    out = ours.run(call, **options)
    assert out.shape == case.q.shape
    assert out.dtype == case.q.dtype
    assert out.is_contiguous()
    assert not out.requires_grad
    for new, old, tokens in ((ours.k_cache, case.k_cache, case.k), (ours.v_cache, case.v_cache, case.v)):
        assert_same_bits(new, appended(case, old, tokens))
    truth = case.double().with_fresh_cache().run(reference.suffix_attention)
    assert not out[case.unused()].any()
    error, torchs = largest(out.double() - truth), largest(sdpa(case).double() - truth)
    assert error <= factor * torchs + 1e-5, f"error {error:.3g}, torch's {torchs:.3g}"
    return out


def check_clamped(
    call: Call, suffixes: list[int], prefixes: Sequence[int], appends: Sequence[int], heads: tuple[int, int] = (1, 1)
) -> None:
    """Lengths that do not fit a cache of 24 slots are clamped as the reference clamps them."""
    case = make_case(suffixes, [20] * len(suffixes), None, heads=heads, slack=4)
    case.k_cache.copy_(torch.randn(case.k_cache.shape))
    case.v_cache.copy_(torch.randn(case.v_cache.shape))
    case.prefix_lens, case.append_lens = ints(*prefixes), ints(*appends)
    ours, theirs = case.with_fresh_cache(), case.with_fresh_cache()
    torch.testing.assert_close(ours.run(call), theirs.run(reference.suffix_attention), rtol=0, atol=1e-5)
    assert_same_bits(ours.k_cache, theirs.k_cache)
    assert_same_bits(ours.v_cache, theirs.v_cache)


def appended(case: AttentionCase, cache: Tensor, tokens: Tensor) -> Tensor:
    """What the cache must hold after the call."""
    out = cache.clone()
    for b, where in case.sequences():
        prefix, append = int(case.prefix_lens[b]), 0 if case.append_lens is None else int(case.append_lens[b])
        out[case.row(b), :, prefix : prefix + append] = tokens[where][:append].transpose(0, 1)
    return out


def sdpa(case: AttentionCase) -> Tensor:
    """The output by torch's attention in the case's dtype, on concatenated keys, one sequence after the other."""
    out = torch.zeros_like(case.q)
    group = case.q.size(-2) // case.k.size(-2)
    for b, where in case.sequences():
        prefix = int(case.prefix_lens[b])
        k, v = (
            torch.cat([cache[case.row(b), :, :prefix], new[where].transpose(0, 1)], dim=1).repeat_interleave(group, 0)
            for cache, new in ((case.k_cache, case.k), (case.v_cache, case.v))
        )
        attended = F.scaled_dot_product_attention(
            case.q[where].transpose(0, 1)[None], k[None], v[None], scale=case.scale
        )
        out[where] = attended[0].transpose(0, 1)
    return out


def largest(x: Tensor) -> float:
    assert not x.isnan().any()
    return float(x.abs().max()) if x.numel() else 0.0


def assert_same_bits(a: Tensor, b: Tensor) -> None:
    integer = {2: torch.int16, 4: torch.int32}[a.element_size()]
    assert torch.equal(a.contiguous().view(integer), b.contiguous().view(integer))


TOLERANCES = {torch.float32: 0.0, torch.bfloat16: 2**-8, torch.float16: 2**-11}  # times the largest value, plus 1e-5


def check_stated(call: Call, case: AttentionCase, factor: float = 1.0) -> None:
    """The output is as exact as the docstring says for operands of unit size."""
    truth = case.double().with_fresh_cache().run(reference.suffix_attention)
    values = max(largest(case.v), largest(case.v_cache.nan_to_num()))
    error = largest(case.with_fresh_cache().run(call).double() - truth)
    assert error <= factor * TOLERANCES[case.q.dtype] * values + 1e-5


def check_lse(call: Call, case: AttentionCase, **options: object) -> None:
    """The output is the same as without the log-sum-exp, which is that of the definition in float64."""
    plain = case.with_fresh_cache().run(call, **options)
    ours = case.with_fresh_cache()
    out, lse = ours.run(call, return_lse=True, **options)
    assert_same_bits(out, plain)
    assert lse.is_contiguous()
    _, truth = case.double().with_fresh_cache().run(reference.suffix_attention, return_lse=True)
    torch.testing.assert_close(lse, truth.float(), rtol=1e-6, atol=1e-5)


def check_merge(call: Call, case: AttentionCase, factor: float = 1.0) -> None:
    """Attention to the frozen prefix alone and to the pass alone, merged by their log-sum-exps, is the whole.

    The part that sees the prefix has one key of the pass, which scores -inf.
    """
    nobody = AttentionCase(**vars(case.with_fresh_cache()))
    nobody.prefix_lens = torch.zeros_like(case.prefix_lens)
    suffix, suffix_lse = nobody.run(call, return_lse=True)
    hidden = AttentionCase(**vars(case.with_fresh_cache()))
    hidden.q, hidden.k = (torch.nn.functional.pad(x, (0, 16)) for x in (case.q, case.k))
    hidden.q[..., -1], hidden.k[..., -1] = 1.0, -math.inf
    hidden.v = torch.nn.functional.pad(case.v, (0, 16))
    hidden.k_cache, hidden.v_cache = (torch.nn.functional.pad(x, (0, 16)) for x in (case.k_cache, case.v_cache))
    hidden.scale = case.q.size(-1) ** -0.5 if case.scale is None else case.scale
    prefix, prefix_lse = hidden.run(call, return_lse=True)
    weights = torch.stack([prefix_lse, suffix_lse]).softmax(0)[..., None]
    merged = weights[0] * prefix[..., :-16].float() + weights[1] * suffix.float()
    whole = case.double().with_fresh_cache().run(reference.suffix_attention)
    torchs = largest(sdpa(case).double() - whole)
    assert largest(merged.double() - whole) <= 2 * factor * torchs + 1e-5
    total = case.double().with_fresh_cache().run(reference.suffix_attention, return_lse=True)[1]
    torch.testing.assert_close(torch.logaddexp(prefix_lse, suffix_lse), total.float(), rtol=1e-6, atol=1e-5)


HIDDEN = [
    pytest.param([5], [300], slice(0, 140), id="the first chunks"),
    pytest.param([5], [300], slice(130, 300), id="the last chunks"),
    pytest.param([5], [1400], slice(0, 1000), id="whole parts of divided keys"),
    pytest.param([5], [1400], slice(1, 1400), id="all but the first"),
    pytest.param([3, 4], [9, 20], slice(0, 20), id="the whole prefix"),
]


def hide(case: AttentionCase, slots: slice) -> None:
    """Makes the frozen keys in these slots score -inf for every query: q is positive, their first component is -inf."""
    case.q.abs_()
    case.k_cache[:, :, slots, 0] = -math.inf
    for b, prefix in enumerate(case.prefix_lens.tolist()):
        case.k_cache[case.row(b), :, prefix:] = math.nan


def check_hidden(call: Call, case: AttentionCase, slots: slice, factor: float = 1.0) -> None:
    """Keys that score -inf have weight 0, whatever their values are."""
    hide(case, slots)
    out = check_attention(call, case, factor)
    case.v_cache[:, :, slots] *= 100  # still of weight 0
    for b, prefix in enumerate(case.prefix_lens.tolist()):
        case.v_cache[b, :, prefix:] = math.nan
    assert_same_bits(case.with_fresh_cache().run(call), out)


def check_nothing_seen(call: Call, case: AttentionCase) -> None:
    """Where all keys score -inf the output is 0; another head, whose keys do not, is as it would be without."""
    case.q.abs_()
    expected = case.with_fresh_cache().run(call)
    group = case.q.size(-2) // case.k.size(-2)
    case.k_cache[:, 0, :, 0] = case.k[..., 0, 0] = -math.inf
    out = case.with_fresh_cache().run(call)
    assert not out[..., :group, :].any()
    assert_same_bits(out[..., group:, :], expected[..., group:, :])
    assert not sdpa(case)[..., :group, :].any()
    _, lse = case.with_fresh_cache().run(call, return_lse=True)
    assert (lse[..., :group] == -math.inf).all()
    assert lse[..., group:].isfinite().all()
