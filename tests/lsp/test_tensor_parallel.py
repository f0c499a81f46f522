"""Two processes that hold one model together compute what one process does, and fail together."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

import lsp
from lsp.models.costs import SHAPES, pass_cost, table
from lsp.models.loading import read_config
from lsp.models.sharding import Share
from lsp.ranks import ranks_of
from tests.lsp import shares
from tests.lsp.checkpoints import FAMILIES, Case, dream, ids_of, llada
from tests.lsp.pair import Pair
from tests.support import ROOT

SPLIT = {name: make for name, make in FAMILIES.items() if name != "a2d-llama"}  # that has 3 heads and 1 K/V head
IDS, FRONTS = (17, 5, 30), (8, 0, 11)
PROMPTS = [[9, 10, 11, 12], [20, 21, 22, 23, 24, 25, 26], [30, 31], [40, 41, 42]]
ISLANDS = lsp.LongestStablePrefix(islands=1.0)
CASES = {
    "ragged": {},
    "islands": {"scheduler": ISLANDS},
    "slots": {"batch_size": 2},
    "islands in slots": {"batch_size": 2, "scheduler": ISLANDS, "logprobs": True},
    "noise": {"temperature": 0.7, "seed": 5, "logprobs": True},
    "the paper's": {"scheduler": lsp.LongestStablePrefix.paper(), "delimiters": "text"},
    "blocks by delimiters": {"scheduler": lsp.AdaBlock(0.5), "delimiter_confidence": 0.1, "batch_size": 2},
    "threshold": {"scheduler": lsp.Threshold(0.5), "temperature": 0.3},
    "history": {"scheduler": lsp.Less(0.1), "batch_size": 2, "temperature": 0.3, "logprobs": True},
    "distributions": {"scheduler": lsp.Klass(0.1, 1.0), "batch_size": 2},
    "blocks": {"scheduler": lsp.TopK(2), "block_length": 8, "cache": "block"},
    "dual cache": {"scheduler": lsp.Threshold(0.3), "block_length": 8, "cache": "dual", "batch_size": 2},
    "guidance": {"scheduler": ISLANDS, "cfg_scale": 0.5, "batch_size": 2},
    "guidance and a filter": {"cfg_scale": 0.5, "temperature": 0.7, "top_p": 0.8, "seed": 5},
    "graph": {"graph": True, "scheduler": lsp.FixedPrefix(3)},
    "no cache": {"scheduler": lsp.Full(), "cache": "none", "max_new_tokens": 6},
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    both = Pair(tmp_path_factory.mktemp("pair"))
    yield both
    both.close()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("checkpoints")
    return {name: make().save(root / name, shards=2) for name, make in SPLIT.items()}


def ragged_ids(case: Case) -> list[list[int]]:
    return [ids_of(case, length, seed=length, masks=4) for length in IDS]


@pytest.mark.parametrize("name", SPLIT)
def test_logits_are_those_of_one_process(pair: Pair, folders: dict[str, Path], name: str) -> None:
    ids = ragged_ids(SPLIT[name]())
    expected = shares.a_pass(lsp.load(folders[name]), ids, FRONTS)
    first, second = pair.run(shares.logits, folders[name], ids, FRONTS)
    for wanted, here, there in zip(expected, first, second, strict=True):
        torch.testing.assert_close(here, wanted, rtol=0, atol=1e-4)
        assert torch.equal(here, there)


def test_a_wrong_layout_is_another_model(pair: Pair, folders: dict[str, Path]) -> None:
    """The comparison of logits notices every defect, by far."""
    ids = ragged_ids(llada())
    expected, _ = shares.a_pass(lsp.load(folders["llada"]), ids, FRONTS)
    for defect in shares.LOGITS:
        (found, _), _ = pair.run(shares.logits, folders["llada"], ids, FRONTS, defect)
        assert (found - expected).abs().max() > 1, defect
    (found, _), _ = pair.run(shares.fused_as_it_is, folders["llada"], ids, FRONTS)
    assert (found - expected).abs().max() > 1


@pytest.mark.parametrize(
    ("name", "case"), [*product(["llada", "dream"], CASES), ("a2d-qwen3", "islands"), ("a2d-qwen2", "noise")]
)
def test_tokens_passes_and_positions_are_those_of_one_process(
    pair: Pair, folders: dict[str, Path], name: str, case: str
) -> None:
    options = {"max_new_tokens": 20} | CASES[case]
    if case in ("the paper's", "blocks by delimiters"):
        delimiters = {"delimiters": range(8, 60), "stops": [5], "suppress": [7]}
        size = SPLIT[name]().vocab_size
        options["vocabulary"] = lsp.tokens.Vocabulary(size, **delimiters)
    expected = shares.answers(lsp.load(folders[name]), PROMPTS, options)
    ranks = pair.run(shares.decoded, folders[name], PROMPTS, options, None, None)
    for found in ranks:
        for (*wanted, likely), (*got, logprobs) in zip(expected, found, strict=True):
            assert got == wanted
            if likely is not None:
                np.testing.assert_allclose(logprobs, likely, atol=1e-4)


def test_there_are_islands(folders: dict[str, Path]) -> None:
    """Otherwise the cases of that name would show nothing."""
    found = shares.answers(lsp.load(folders["llada"]), PROMPTS, {"max_new_tokens": 20, "scheduler": ISLANDS})
    assert any(when != sorted(when) for _, when, *_ in found)


def test_bfloat16_agrees_on_all_ranks_and_float64_with_one_process(pair: Pair, folders: dict[str, Path]) -> None:
    options = {"max_new_tokens": 12}
    first, second = pair.run(shares.decoded, folders["dream"], PROMPTS, options, "bfloat16", None)
    assert first == second
    expected = shares.answers(lsp.load(folders["dream"], dtype="float64"), PROMPTS, options)
    assert pair.run(shares.decoded, folders["dream"], PROMPTS, options, "float64", None) == [expected, expected]


def test_a_vocabulary_without_its_offset_is_noticed(pair: Pair, folders: dict[str, Path]) -> None:
    options = {"max_new_tokens": 20}
    expected = shares.answers(lsp.load(folders["llada"]), PROMPTS, options)
    found, _ = pair.run(shares.decoded, folders["llada"], PROMPTS, options, None, "vocabulary without its offset")
    assert found != expected


def test_a_shard_may_be_suppressed_altogether(pair: Pair, folders: dict[str, Path]) -> None:
    model = lsp.load(folders["llada"])
    border = Share(model.config, 0, 2).vocabulary.stop
    for ids in (range(border), range(border, model.config.vocab_size)):
        expected = [tokens for tokens, *_ in shares.answers(model, [[9, 10]], shares.suppressing(model, ids))]
        assert pair.run(shares.suppressed, folders["llada"], ids) == [expected, expected]


def test_ranks_agree_whatever_the_scheduler_goes_by(pair: Pair, folders: dict[str, Path]) -> None:
    first, second = pair.run(shares.at_random, folders["llada"])
    assert first == second
    first, second = pair.run(shares.asks_at_random, folders["dream"])
    assert first == second


def test_without_a_leader_they_would_not(pair: Pair, folders: dict[str, Path]) -> None:
    first, second = pair.run(shares.at_random, folders["llada"], "nobody leads")
    assert first != second


ARGUMENTS = ("prompts", "max_new_tokens", "options", "seeds", "vocabulary")


@pytest.mark.parametrize("given", ARGUMENTS)
def test_ranks_that_are_called_with_other_arguments_are_told_which(
    pair: Pair, folders: dict[str, Path], given: str
) -> None:
    found = pair.run(shares.decoded_with, folders["llada"], given)
    assert found == [f"ValueError: Invalid {given} on rank 1: expected what rank 0 was given, got another"] * 2


def test_a_scheduler_that_raises_ends_all_ranks(pair: Pair, folders: dict[str, Path]) -> None:
    with pytest.raises(Exception, match="ArithmeticError: the scheduler has a defect"):
        pair.run(shares.decoded_with, folders["llada"], "scheduler")
    assert pair.result(1) == "RuntimeError: rank 0 has ended decoding: ArithmeticError: the scheduler has a defect"


def test_a_step_is_broken_only_where_rank_0_says_so(pair: Pair, folders: dict[str, Path]) -> None:
    """A trace looks at more rows than its scheduler; what is wrong with these does not concern it, on any rank."""
    first, second = pair.run(shares.looks_at_nan, folders["llada"])
    assert first == second
    assert len(first) == 4


@pytest.mark.parametrize("name", ["llada", "dream"])
@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_bytes_on_the_wire_are_those_of_the_formula(
    pair: Pair, folders: dict[str, Path], name: str, temperature: float
) -> None:
    sizes = [(12, 4), (40, 7), (5, 1)]
    config = lsp.load(folders[name]).config
    for found in pair.run(shares.counted, folders[name], sizes, temperature):
        for (tokens, rows), (calls, payload, sent) in zip(sizes, found, strict=True):
            how = {"dtype": torch.float32, "noise": temperature > 0}
            cost = pass_cost(config, ranks=2, tokens=tokens, rows=rows, **how)
            assert (calls["all_reduce"], calls["all_gather"]) == (2 * config.n_layers + 1, 1)
            assert (payload["all_reduce"], payload["all_gather"]) == (cost.all_reduce, cost.all_gather)
            assert sent == cost.sent == cost.all_reduce + cost.all_gather  # of two ranks each sends what it has
            assert payload["broadcast"] == 2 * 4096  # what is asked, and what is chosen


def test_every_rank_reads_its_part_and_no_more(pair: Pair, folders: dict[str, Path]) -> None:
    for name, folder in folders.items():
        whole = sum(parameter.nbytes for parameter in lsp.load(folder).parameters())
        for weights, read in pair.run(shares.held, folder):
            assert weights == read
            assert weights < 0.52 * whole, name


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="no /proc")
def test_the_peak_of_loading_is_little_more_than_half_of_the_weights(pair: Pair, tmp_path: Path) -> None:
    sizes = {"embedding_size": 30000, "vocab_size": 30000, "d_model": 512, "mlp_hidden_size": 1024}
    case = llada(**sizes)
    whole = sum(tensor.nbytes for tensor in case.tensors.values())
    for peak in pair.run(shares.peak, case.save(tmp_path)):
        assert peak < 0.55 * whole, peak / whole


def test_a_share_is_not_saved_as_a_model(pair: Pair, folders: dict[str, Path], tmp_path: Path) -> None:
    expected = "Invalid model: expected a whole one, got a share of 2 (tensor_parallel)"
    assert pair.run(shares.saved, folders["llada"], tmp_path) == [expected] * 2


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_dies_ends_the_others_with_an_error(folders: dict[str, Path], tmp_path: Path, victim: int) -> None:
    doomed = Pair(tmp_path)
    try:
        doomed.start(shares.decode_for_ever, folders["llada"], tmp_path / "told")
        while not (tmp_path / "told").exists():
            assert all(process.is_alive() for process in doomed.processes)
            time.sleep(0.1)
        begin = time.monotonic()
        process = doomed.processes[victim]
        assert process.pid is not None
        process.kill()
        error = doomed.result(1 - victim)
        assert "failed on rank" in error
        assert "got one that has ended or cannot be reached" in error
        assert time.monotonic() - begin < 60  # a second, on a machine that does nothing else
        process.join()
        assert process.exitcode == -signal.SIGKILL
    finally:
        doomed.close()


@pytest.mark.abuse("models and checkpoints")
@pytest.mark.parametrize(
    ("changes", "size", "message"),
    [
        ({"n_heads": 6, "n_kv_heads": 6}, 4, "n_heads for tensor_parallel: expected a multiple of 4, got 6"),
        ({"n_kv_heads": 2}, 4, "n_kv_heads for tensor_parallel: expected a multiple of 4, got 2"),
        ({"mlp_size": 3}, 4, "mlp_size for tensor_parallel: expected at least 4, got 3"),
        ({"vocab_size": 15}, 4, "vocab_size for tensor_parallel: expected at least 16, got 15"),
    ],
)
def test_what_does_not_divide_is_refused_by_name(changes: dict, size: int, message: str) -> None:
    config = replace(SHAPES["LLaDA-8B"], **changes)
    with pytest.raises(ValueError, match=f"Invalid {message}"):
        Share(config, 0, size)


@pytest.mark.abuse("models and checkpoints")
@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        (True, ValueError, "expected a process started by torchrun, or torch.distributed.init_process_group before"),
        ("two", TypeError, "expected True, False or a ProcessGroup, got 'two'"),
    ],
)
def test_a_process_that_is_alone_is_told_so(
    folders: dict[str, Path], asked: object, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(error, match=f"Invalid tensor_parallel: {message}"):
        lsp.load(folders["llada"], tensor_parallel=asked)
    assert ranks_of(False, torch.device("cpu")) is None


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_shares_are_the_whole_without_overlap(size: int) -> None:
    changes = {"vocab_size": 211, "n_heads": 84, "n_kv_heads": 84, "mlp_size": 97}
    config = replace(SHAPES["Dream-7B"], **changes)
    every = [Share(config, rank, size) for rank in range(size)]
    for name in ("vocabulary", "mlp"):
        spans = [getattr(share, name) for share in every]
        assert [span.start for span in spans] == [0, *(span.stop for span in spans[:-1])]
        assert spans[-1].stop == {"vocabulary": 211, "mlp": 97}[name]
        assert all(span.stop > span.start for span in spans)
    assert all(share.vocabulary.start % 4 == 0 for share in every)
    assert sum(share.config.n_heads for share in every) == 84


@pytest.mark.parametrize("name", SHAPES)
def test_the_table_of_the_documentation_is_what_is_computed(name: str) -> None:
    assert "\n".join(table(name)) in (ROOT / "docs/scale.md").read_text("utf-8")


def test_public_configs_have_the_shapes_of_the_table() -> None:
    """The shapes that docs/scale.md counts are those that the readers of configs give."""
    public = llada().config | {"d_model": 4096, "n_heads": 32, "n_kv_heads": 32, "n_layers": 32}
    public |= {"mlp_hidden_size": 12288, "embedding_size": 126464, "vocab_size": 126464, "rms_norm_eps": 1e-5}
    found = replace(read_config(public), family="", mask_id=None, stop_ids=())
    assert found == SHAPES["LLaDA-8B"]
    public = dream().config | {"hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4}
    public |= {"num_hidden_layers": 28, "intermediate_size": 18944, "vocab_size": 152064}
    assert replace(read_config(public), family="", mask_id=None, stop_ids=()) == SHAPES["Dream-7B"]
