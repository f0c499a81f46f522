"""The operations are good citizens of torch: opcheck, fullgraph compilation, meta tensors, no gradients."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import lsp_kernels
from lsp_kernels import Noise, PrefixRule, Vocabulary, commit_prefix, select_prefix, token_stats
from lsp_kernels._ops import rule_arguments
from tests.support import OPERATORS, same

RULE = PrefixRule()
VOCABULARY = Vocabulary(50, delimiters=range(0, 50, 3), stops=[49], suppress=[7])
BORDERS = torch.tensor([0, 5, 5, 12], dtype=torch.int32)


def there(results: tuple[torch.Tensor | None, ...]) -> list[torch.Tensor]:
    """What was asked for."""
    return [result for result in results if result is not None]


def score(logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
    commit = commit_prefix(logits, BORDERS, rule=RULE, vocabulary=VOCABULARY)
    lengths, finished = select_prefix(commit.margins, commit.tokens, BORDERS, rule=RULE, vocabulary=VOCABULARY)
    stats = token_stats(logits, vocabulary=VOCABULARY)
    return (*there(commit), lengths, finished, *there(stats), stats.confidence)


@pytest.mark.parametrize("noise", [None, Noise(0.7, 3, torch.arange(12)).table], ids=["greedy", "noise"])
@pytest.mark.parametrize("gradient", [False, True])
def test_opcheck(gradient: bool, noise: torch.Tensor | None) -> None:
    logits = torch.randn(12, 50, requires_grad=gradient)
    margins, tokens = torch.rand(12, requires_grad=gradient), torch.randint(50, (12,))
    rule = rule_arguments(RULE)
    tables = VOCABULARY.tables
    for op, arguments in {
        OPERATORS.token_stats: (logits, *tables, 0, noise, True, None, None),
        OPERATORS.select_prefix: (
            margins,
            tokens,
            BORDERS,
            None,
            None,
            VOCABULARY.flags,
            *rule,
        ),
        OPERATORS.commit_prefix: (logits, BORDERS, None, None, *tables, *rule, noise, True, None, None),
    }.items():
        torch.library.opcheck(op.default, arguments)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_as_one_graph(dynamic: bool) -> None:
    logits = torch.randn(12, 50)
    compiled = torch.compile(score, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for got, expected in zip(compiled(logits), score(logits), strict=True):
        same(got, expected)


def test_reference_compiles_as_one_graph() -> None:
    logits = torch.randn(3, 9, 50)
    compiled = torch.compile(lsp_kernels.reference.commit_prefix, fullgraph=True, backend="aot_eager")
    eager = lsp_kernels.reference.commit_prefix(logits, rule=RULE, vocabulary=VOCABULARY)
    for got, expected in zip(compiled(logits, rule=RULE, vocabulary=VOCABULARY), eager, strict=True):
        same(got, expected)


def test_meta_tensors_give_the_shapes_of_real_ones() -> None:
    for shape in [(12, 50), (2, 6, 50)]:
        rule, real = PrefixRule(snap=False), torch.randn(shape)
        meta = there((*commit_prefix(real.to("meta"), rule=rule), *token_stats(real.to("meta"))))
        for a, b in zip(meta, there((*commit_prefix(real, rule=rule), *token_stats(real))), strict=True):
            assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())


def test_outputs_never_require_a_gradient(backend) -> None:
    logits = torch.randn(12, 50, requires_grad=True)
    outputs = (*backend.token_stats(logits), *backend.commit_prefix(logits, rule=PrefixRule(snap=False)))
    assert not any(output.requires_grad for output in there(outputs))


def test_inputs_are_left_as_they_were(backend) -> None:
    logits = torch.randn(12, 50)
    before = logits.clone()
    backend.commit_prefix(logits, BORDERS, rule=RULE, vocabulary=VOCABULARY)
    backend.token_stats(logits, vocabulary=VOCABULARY)
    assert torch.equal(logits, before)


def test_inference_mode_changes_nothing() -> None:
    logits = torch.randn(12, 50)
    expected = score(logits)
    with torch.inference_mode():
        for got, wanted in zip(score(logits), expected, strict=True):
            same(got, wanted)


def test_calls_from_several_threads_do_not_disturb_each_other() -> None:
    logits = [torch.randn(12, 50) for _ in range(32)]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(score, logits))
    for one, result in zip(logits, results, strict=True):
        for got, wanted in zip(result, score(one), strict=True):
            same(got, wanted)


def test_inductor_calls_the_operations() -> None:
    logits = torch.randn(12, 50)
    for got, expected in zip(torch.compile(score, fullgraph=True)(logits), score(logits), strict=True):
        torch.testing.assert_close(got, expected, equal_nan=True)
