"""Tensors on Apple's GPUs (``mps``) are served by the reference, without a crash; shown on a stand-in without a Mac."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import lsp
from lsp.cli.options import load_model
from lsp_kernels import (
    PrefixCache,
    PrefixRule,
    Vocabulary,
    _ops,
    commit_prefix,
    info,
    linear_commit_prefix,
    linear_token_stats,
    merge_token_stats,
    select_prefix,
    suffix_attention,
    token_stats,
)
from lsp_kernels._namespace import NAMESPACE
from lsp_kernels.reference import suffix_attention as reference_attention
from tests.apple import AppleGpu, AppleTensor, to_apple
from tests.support import ints


@pytest.fixture
def apple() -> Iterator[AppleGpu]:
    with AppleGpu() as gpu:
        yield gpu


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 3


def back(x: Any) -> Any:
    """A result in the memory of the CPU; it must have been on the stand-in. What was not asked for is None."""
    if x is None:
        return None
    assert isinstance(x, AppleTensor)
    return x.held


RULE = PrefixRule(floor=0.1, beta=1.0, no_delimiter="keep")
VOCABULARY = {"delimiters": [3, 30], "stops": [7], "suppress": [11]}


@pytest.mark.parametrize("name", _ops.SCHEMAS)
def test_torch_sends_every_operator_to_the_reference(name: str) -> None:
    table = torch._C._dispatch_dump_table(f"{NAMESPACE}::{name}").splitlines()
    assert [line for line in table if line.startswith("MPS:") and line.endswith("[default backend kernel]")]
    assert not torch._C._dispatch_has_kernel_for_dispatch_key(f"{NAMESPACE}::{name}", "MPS")


def stats(device: Callable[[Tensor], Tensor], vocabulary: Vocabulary) -> tuple[Any, ...]:
    return tuple(token_stats(device(random(6, 50)), vocabulary=vocabulary, entropy=True))


def committed(device: Callable[[Tensor], Tensor], vocabulary: Vocabulary) -> tuple[Any, ...]:
    rows = device(ints(0, 2, 6)), device(ints(2, 4))
    return tuple(commit_prefix(device(random(6, 50)), *rows, rule=RULE, vocabulary=vocabulary, log_odds=True))


def dense(device: Callable[[Tensor], Tensor], vocabulary: Vocabulary) -> tuple[Any, ...]:
    return tuple(commit_prefix(device(random(2, 3, 50)), rule=RULE, vocabulary=vocabulary))


def selected(device: Callable[[Tensor], Tensor], vocabulary: Vocabulary) -> tuple[Any, ...]:
    margins, tokens = random(6).abs(), random(6).abs().long()
    return tuple(select_prefix(device(margins), device(tokens), rule=RULE, vocabulary=vocabulary))


def head(device: Callable[[Tensor], Tensor], vocabulary: Vocabulary) -> tuple[Any, ...]:
    factors = device(random(6, 16)), device(random(50, 16, seed=1))
    return (
        *linear_token_stats(*factors, vocabulary=vocabulary),
        *linear_commit_prefix(*factors, rule=RULE, vocabulary=vocabulary),
    )


def merged(device: Callable[[Tensor], Tensor], vocabulary: Vocabulary) -> tuple[Any, ...]:
    hidden, weight = device(random(6, 16)), random(50, 16, seed=1)
    parts = [linear_token_stats(hidden, device(weight[i : i + 25]), id_offset=i) for i in (0, 25)]
    return tuple(merge_token_stats(parts))


OPERATIONS = [stats, committed, dense, selected, head, merged]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.__name__)
def test_an_operation_is_that_of_the_cpu(operation: Callable[..., tuple[Any, ...]]) -> None:
    expected = operation(lambda x: x, Vocabulary(50, **VOCABULARY))
    with AppleGpu() as gpu:
        got = operation(to_apple, Vocabulary(50, **VOCABULARY, device="mps"))
    assert gpu.served
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(back(one), other, rtol=0, atol=1e-5, equal_nan=True)


def test_attention_reads_and_appends_to_a_cache_there(apple: AppleGpu) -> None:
    q, k, v = random(7, 4, 32), random(7, 2, 32, seed=1), random(7, 2, 32, seed=2)
    borders = ints(0, 4, 7)
    k_cache, v_cache = random(2, 2, 16, 32, seed=3), random(2, 2, 16, 32, seed=4)
    cache = PrefixCache(1, 2, 2, 16, 32, device="mps")
    for tensor, values in ((cache.k[0], k_cache), (cache.v[0], v_cache)):
        tensor.copy_(values)
    lengths = [0, 0]
    for append in ([4, 1], [0, 2]):
        expected = reference_attention(q, k, v, k_cache, v_cache, borders, ints(*lengths), ints(*append))
        cache.begin(to_apple(borders), append)
        out = cache.attend(0, to_apple(q), to_apple(k), to_apple(v))
        cache.advance()
        lengths = [a + b for a, b in zip(lengths, append, strict=True)]
        torch.testing.assert_close(back(out), expected)
        assert torch.equal(back(cache.k[0]), k_cache)
        assert torch.equal(back(cache.v[0]), v_cache)
        assert back(cache.lengths).tolist() == cache.frozen == lengths
    assert apple.served == ["suffix_attention"] * 2


def test_memory_that_is_shared_is_refused_and_neighbours_are_not(apple: AppleGpu) -> None:
    """An address is a handle there: those of two buffers may be nearer than their sizes."""
    q, k, v = (to_apple(random(3, 1, 32, seed=i)) for i in range(3))
    k_cache, v_cache = to_apple(random(1, 1, 64, 32)), to_apple(random(1, 1, 64, 32))
    assert abs(k_cache.data_ptr() - v_cache.data_ptr()) < 64 * 32 * 4
    given = {"cu_seqlens": to_apple(ints(0, 3)), "prefix_lens": to_apple(ints(1)), "append_lens": to_apple(ints(2))}
    out = to_apple(torch.zeros(3, 1, 32))
    assert suffix_attention(q, k, v, k_cache, v_cache, **given, out=out) is out
    with pytest.raises(ValueError, match="Invalid v_cache: expected memory of its own, got memory of k_cache"):
        suffix_attention(q, k, v, k_cache, k_cache, **given)
    tokens = k_cache[0, 0, :3, None]
    with pytest.raises(ValueError, match="Invalid k: expected memory outside of the caches, got memory of k_cache"):
        suffix_attention(q, tokens, v, k_cache, v_cache, **given)


def test_the_embedded_model_decodes_there(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt, given = "Use 3, 5 and 7 to make 15.\n", {"max_new_tokens": 12, "scheduler": lsp.FixedPrefix(4)}
    (expected,) = lsp.generate(lsp.load("tiny"), prompt, **given)
    # torch would put the new memory into the old parameters, which are not of the stand-in's class
    monkeypatch.setattr(torch.__future__, "_overwrite_module_params_on_conversion", True)
    with AppleGpu() as gpu:
        model = lsp.load("tiny", device="mps")
        (answer,) = lsp.generate(model, prompt, **given)
    assert model.device.type == "mps"
    assert set(gpu.served) == {"add_norm", "rotate_", "silu_mul", "suffix_attention", "token_stats"}
    assert (answer.tokens, answer.passes) == (expected.tokens, expected.passes)


def test_without_a_mac_the_command_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ValueError, match="Invalid device: expected cpu, as torch finds no GPU here, got 'mps'"):
        load_model("tiny", device="mps")


def test_the_stand_in_lacks_what_a_mac_lacks(apple: AppleGpu) -> None:
    x = to_apple(random(3))
    with pytest.raises(TypeError, match="doesn't support float64"):
        x.double()
    with pytest.raises(RuntimeError, match="Cannot pin memory"):
        torch.zeros(3, device="mps", pin_memory=True)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        x + random(3)
    assert torch.equal((x + 1).cpu(), random(3) + 1)


def test_the_report_says_what_serves_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(
        "; mps: reference; other devices: reference" in line for name, line in info.backends() if name != "Triton"
    )
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert dict(info.accelerators())["Apple GPU"] == "mps; served by reference"
    library = torch.library.Library(NAMESPACE, "IMPL")
    library.impl("token_stats", lambda *_: None, "MPS")
    try:
        assert (
            dict(info.accelerators())["Apple GPU"] == "mps; served by reference, but token_stats by a registered kernel"
        )
        assert "mps: a registered kernel;" in dict(info.backends())["token_stats"]
    finally:
        library._destroy()
