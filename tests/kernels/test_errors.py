"""Bad input gets an error that names the argument, what was expected and what came."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from lsp_kernels import PrefixRule, Vocabulary, commit_prefix, select_prefix, token_stats
from tests.support import ints

LOGITS = torch.zeros(6, 10)
VOCABULARY = Vocabulary(10, delimiters=[3])
RULE = PrefixRule()


RULES = [
    pytest.param({"alpha": 0.6}, "alpha.*0 < alpha <= beta = 0.5.*0.6", id="alpha above beta"),
    pytest.param({"alpha": 0.0}, "alpha", id="alpha zero"),
    pytest.param({"alpha": -0.1}, "alpha", id="alpha negative"),
    pytest.param({"alpha": math.nan}, "alpha", id="alpha nan"),
    pytest.param({"alpha": 1e-7}, "alpha.*millionths", id="alpha rounds to zero"),
    pytest.param({"beta": 1.5}, "beta.*<= 1.*1.5", id="beta above one"),
    pytest.param({"beta": 0.0}, "beta", id="beta zero"),
    pytest.param({"beta": math.nan}, "beta", id="beta nan"),
    pytest.param({"floor": -1.0}, "floor.*>= 0.*-1", id="floor negative"),
    pytest.param({"floor": math.nan}, "floor", id="floor nan"),
    pytest.param({"min_length": 0}, "min_length.*from 1 to.*0", id="minimum zero"),
    pytest.param({"min_length": 2**31}, r"min_length.*to 2\^31 - 1, got 2147483648", id="minimum too large"),
    pytest.param({"window": -1}, "window.*from 0 to.*-1", id="window negative"),
    pytest.param({"no_delimiter": "drop"}, "no_delimiter.*'minimum' or 'keep'.*'drop'", id="no_delimiter"),
]


@pytest.mark.abuse("operators")
@pytest.mark.parametrize(("arguments", "message"), RULES)
def test_rule_refuses(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=f"Invalid {message}"):
        PrefixRule(**arguments)


TYPES = [
    pytest.param(lambda: PrefixRule(alpha="0.2"), "alpha: expected a number, got '0.2'", id="alpha text"),
    pytest.param(lambda: PrefixRule(floor=True), "floor: expected a number, got True", id="floor flag"),
    pytest.param(lambda: PrefixRule(min_length=1.5), "min_length: expected an integer, got 1.5", id="fraction"),
    pytest.param(lambda: PrefixRule(snap="no"), "snap: expected True or False, got 'no'", id="snap text"),
    pytest.param(lambda: Vocabulary("10"), "size: expected an integer, got '10'", id="size text"),
    pytest.param(lambda: Vocabulary(10, stops=[1.7]), r"stops: expected .* integers, got \[1.7\]", id="id fraction"),
    pytest.param(lambda: Vocabulary(10, delimiters="12"), "delimiters: expected .* got '12'", id="ids text"),
    pytest.param(lambda: Vocabulary(10, suppress=5), "suppress: expected an iterable of integers, got 5", id="one id"),
    pytest.param(
        lambda: token_stats(LOGITS, vocabulary=5), "vocabulary: expected a Vocabulary, got int", id="vocabulary"
    ),
    pytest.param(lambda: token_stats(LOGITS, workspace=3), "workspace: expected a Workspace, got int", id="workspace"),
]


@pytest.mark.abuse("operators")
@pytest.mark.parametrize(("call", "message"), TYPES)
def test_other_types_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(TypeError, match=f"Invalid {message}"):
        call()


@pytest.mark.abuse("operators")
def test_sparse_logits_are_refused() -> None:
    with pytest.raises(ValueError, match="Invalid layout of logits: expected a dense tensor, got torch"):
        token_stats(LOGITS.to_sparse())


def test_integers_of_other_libraries_are_integers() -> None:
    assert PrefixRule(min_length=np.int64(3)).min_length == 3
    assert Vocabulary(np.int32(10), stops=np.arange(2)).size == 10


@pytest.mark.abuse("operators")
def test_subclasses_of_tensor_are_checked_too() -> None:
    class Plain(torch.Tensor):
        pass

    with pytest.raises(ValueError, match=r"Invalid n_active\[0\]"):
        commit_prefix(LOGITS.as_subclass(Plain), n_active=ints(-5), rule=PrefixRule(snap=False))


def test_alpha_is_free_with_a_floor() -> None:
    assert PrefixRule(alpha=0.9, beta=0.5, floor=1.0).highest(10) == 5


VOCABULARIES = [
    pytest.param(
        {"delimiters": [10]},
        "delimiters: expected ids from 0 to 9, got 10",
        id="delimiter too large",
    ),
    pytest.param({"stops": [-1]}, "stops: expected ids from 0 to 9, got -1", id="stop negative"),
    pytest.param({"suppress": [99]}, "suppress: expected ids from 0 to 9, got 99", id="suppressed too large"),
    pytest.param({"suppress": range(10)}, "suppress.*all of them", id="everything suppressed"),
]


@pytest.mark.abuse("operators")
@pytest.mark.parametrize(("arguments", "message"), VOCABULARIES)
def test_vocabulary_refuses(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=f"Invalid {message}"):
        Vocabulary(10, **arguments)


@pytest.mark.abuse("operators")
def test_vocabulary_refuses_an_empty_one() -> None:
    with pytest.raises(ValueError, match="Invalid size"):
        Vocabulary(0)


SHAPES = [
    pytest.param(torch.zeros(10), ValueError, r"shape of logits.*\[R, V\], got \[10\]", id="one dimension"),
    pytest.param(torch.zeros(1, 2, 3, 10), ValueError, r"shape of logits.*got \[1, 2, 3, 10\]", id="four"),
    pytest.param(torch.zeros(3, 0), ValueError, "shape of logits", id="no ids"),
    pytest.param(torch.zeros(6, 10, dtype=torch.float64), TypeError, "dtype of logits.*float64", id="float64"),
    pytest.param(torch.zeros(6, 10, dtype=torch.int64), TypeError, "dtype of logits.*int64", id="integers"),
    pytest.param(torch.zeros(10, 6).T, ValueError, "strides of logits.*contiguous", id="transposed V"),
    pytest.param(torch.zeros(6, 20)[:, ::2], ValueError, "strides of logits", id="every other id"),
    pytest.param([[0.0]], TypeError, "logits: expected a Tensor, got list", id="a list"),
    pytest.param(torch.zeros(6, 11), ValueError, "vocabulary: expected size V = 11, got 10", id="other size"),
    pytest.param(
        torch.zeros(6, 10, device="meta"),
        ValueError,
        "device of vocabulary.*meta.*cpu",
        id="device",
    ),
]


@pytest.mark.abuse("operators")
@pytest.mark.parametrize(("logits", "error", "message"), SHAPES)
def test_logits_are_refused(logits: torch.Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"Invalid {message}"):
        token_stats(logits, vocabulary=VOCABULARY)
    with pytest.raises(error, match=f"Invalid {message}"):
        commit_prefix(logits, rule=RULE, vocabulary=VOCABULARY)


SEQUENCES = [
    pytest.param(
        {"cu_rows": ints(0, 4, 3)},
        ValueError,
        "cu_rows.*non-decreasing.*0, 4, 3",
        id="falling borders",
    ),
    pytest.param({"cu_rows": ints(0, 7)}, ValueError, "cu_rows.*at most 6.*7", id="border past the end"),
    pytest.param({"cu_rows": ints(-1, 6)}, ValueError, "cu_rows.*-1", id="negative border"),
    pytest.param({"cu_rows": ints()}, ValueError, r"shape of cu_rows.*\[B \+ 1\], got \[0\]", id="no borders"),
    pytest.param({"cu_rows": ints(0, 6)[None]}, ValueError, "shape of cu_rows", id="borders 2-D"),
    pytest.param({"cu_rows": torch.tensor([0, 6])}, TypeError, "dtype of cu_rows.*int32.*int64", id="int64"),
    pytest.param({"cu_rows": ints(0, 9, 6, 9)[::2]}, ValueError, "strides of cu_rows", id="strided borders"),
    pytest.param({"cu_rows": ints(0, 6).to("meta")}, ValueError, "device of cu_rows.*cpu.*meta", id="device"),
    pytest.param(
        {"n_active": ints(3, 3)},
        ValueError,
        r"shape of n_active: expected \[1\], got \[2\]",
        id="shape",
    ),
    pytest.param({"n_active": ints(-1)}, ValueError, r"n_active\[0\].*at least 0, got -1", id="negative N"),
    pytest.param(
        {"n_active": ints(12)},
        ValueError,
        r"n_active\[0\].*at least 7 rows.*12 active positions.*got 6",
        id="rows",
    ),
    pytest.param({"starts": ints(-1)}, ValueError, r"starts\[0\].*0 to 6.*-1", id="negative start"),
    pytest.param({"starts": ints(7)}, ValueError, r"starts\[0\].*0 to 6.*7", id="start past the end"),
    pytest.param(
        {"starts": ints(4), "n_active": ints(4)},
        ValueError,
        r"n_active\[0\].*at least 3 rows.*got 2",
        id="both",
    ),
    pytest.param({"starts": 1}, TypeError, "starts: expected a Tensor, got int", id="start as int"),
]


@pytest.mark.abuse("operators")
@pytest.mark.parametrize(("arguments", "error", "message"), SEQUENCES)
def test_sequences_are_refused(arguments: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"Invalid {message}"):
        commit_prefix(LOGITS, **arguments, rule=RULE, vocabulary=VOCABULARY)
    with pytest.raises(error, match=f"Invalid {message}"):
        select_prefix(LOGITS[:, 0], torch.zeros(6).long(), **arguments, rule=RULE, vocabulary=VOCABULARY)


@pytest.mark.abuse("operators")
def test_borders_are_refused_with_a_batch() -> None:
    with pytest.raises(ValueError, match="Invalid cu_rows: expected None"):
        commit_prefix(LOGITS[None], ints(0, 6), rule=RULE, vocabulary=VOCABULARY)


STATS = [
    pytest.param(
        LOGITS[0].double(),
        torch.zeros(10).long(),
        TypeError,
        "dtype of margins",
        id="float64 margins",
    ),
    pytest.param(LOGITS[0], torch.zeros(10).int(), TypeError, "dtype of tokens", id="int32 tokens"),
    pytest.param(
        LOGITS[0],
        torch.zeros(9).long(),
        ValueError,
        r"shape of tokens.*\[10\].*\[9\]",
        id="shapes differ",
    ),
    pytest.param(
        LOGITS[None],
        torch.zeros(1, 6, 10).long(),
        ValueError,
        "shape of margins",
        id="three dimensions",
    ),
]


@pytest.mark.abuse("operators")
@pytest.mark.parametrize(("margins", "tokens", "error", "message"), STATS)
def test_statistics_are_refused(margins, tokens, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"Invalid {message}"):
        select_prefix(margins, tokens, rule=RULE, vocabulary=VOCABULARY)


@pytest.mark.abuse("operators")
@pytest.mark.parametrize("vocabulary", [None, Vocabulary(10, stops=[1])])
def test_snapping_needs_delimiters(vocabulary: Vocabulary | None) -> None:
    with pytest.raises(ValueError, match="Invalid rule: expected a vocabulary with delimiters for snap=True"):
        commit_prefix(LOGITS, rule=RULE, vocabulary=vocabulary)


@pytest.mark.abuse("operators")
def test_rule_must_be_a_rule() -> None:
    with pytest.raises(TypeError, match="Invalid rule: expected a PrefixRule, got float"):
        commit_prefix(LOGITS, rule=0.5, vocabulary=VOCABULARY)  # type: ignore[arg-type]


@pytest.mark.abuse("operators")
@pytest.mark.parametrize("isa", ["sse", "avx1024"])
def test_unknown_instruction_sets_are_refused(monkeypatch: pytest.MonkeyPatch, isa: str) -> None:
    monkeypatch.setenv("LSP_CPU_ISA", isa)
    with pytest.raises(RuntimeError, match=f"LSP_CPU_ISA: expected avx512bf16, avx512, avx2 or scalar, got {isa}"):
        token_stats(LOGITS)
