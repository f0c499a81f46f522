"""Models of transformers on the prefix cache: every pass is what transformers' own attention and cache compute.

Gemma 3 is bidirectional by its config, Qwen3 is told to be, BERT was born so (in transformers 4 it does not ask the
interface). LLaDA and Dream are the classes of `lsp.register`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import AutoModel, AutoModelForCausalLM, DynamicCache

import lsp
from lsp.integrations.transformers import ATTENTION, SuffixCache, cached, generate
from lsp.models.transformer import Transformer
from lsp_kernels import PrefixRule, Vocabulary
from tests.lsp.checkpoints import Case, dream, ids_of, llada, qwen3
from tests.lsp.recorder import SCHEDULERS, Recorder, last

MASK, STOP, PAD, SIZE = 7, 5, 3, 211
TEXT = {
    "vocab_size": SIZE,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "eos_token_id": STOP,
    "pad_token_id": PAD,
    "bos_token_id": 4,
    "tie_word_embeddings": False,
}
SCALES = {"norm": 0.3, "Norm": 0.3, "embed": 0.1, "q_proj": 0.3, "k_proj": 0.3, "query": 0.3, "key": 0.3}
SCHEDULER = lsp.LongestStablePrefix(PrefixRule(floor=0.5, beta=0.5, snap=False), islands=None)


def random_weights(model: Any) -> Any:
    """Weights under which a model predicts many different tokens: norms near 1, sharp attention."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        scale = next((scale for part, scale in SCALES.items() if part in name), 0.15)
        drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * scale
        ones = name.endswith("weight") and "norm" in name.lower() and "Gemma" not in type(model).__name__
        parameter.data = drawn + 1 if ones else drawn
    return model.double().eval()


def gemma3(attention: str, **changes: object) -> Any:
    shape = {
        "num_key_value_heads": 1,
        "head_dim": 32,
        "query_pre_attn_scalar": 20,
        "layer_types": ["full_attention"] * 3,
    }
    config = transformers.Gemma3TextConfig(**TEXT | shape | {"use_bidirectional_attention": True} | changes)
    config._attn_implementation = attention
    return random_weights(transformers.Gemma3ForCausalLM(config))


def qwen(attention: str, **changes: object) -> Any:
    shape = {"num_key_value_heads": 1, "head_dim": 32, "is_causal": False}
    config = transformers.Qwen3Config(**TEXT | shape | changes)
    config._attn_implementation = attention
    return random_weights(transformers.Qwen3ForCausalLM(config))


def bert(attention: str) -> Any:
    if transformers.__version__.startswith("4."):
        pytest.skip("it does not ask the interface in transformers 4")
    config = transformers.BertConfig(**TEXT)
    config._attn_implementation = attention
    return random_weights(transformers.BertLMHeadModel(config))


MODELS: dict[str, Callable[[str], Any]] = {"gemma3": gemma3, "qwen3": qwen, "bert": bert}


@pytest.fixture(params=MODELS, scope="module")
def make(request: pytest.FixtureRequest) -> Callable[[str], Any]:
    return MODELS[request.param]


@pytest.fixture(scope="module")
def model(make: Callable[[str], Any]) -> Any:
    return make(ATTENTION)


@pytest.fixture(scope="module")
def plain(make: Callable[[str], Any]) -> Any:
    return make("eager")


def ids(length: int, seed: int = 0, masks: int = 0) -> Tensor:
    out = torch.randint(8, SIZE, (1, length), generator=torch.Generator().manual_seed(seed))
    out[:, length - masks :] = MASK
    return out


def everything(queries: int, keys: int) -> Tensor:
    """A mask under which every query sees every key."""
    return torch.zeros(1, 1, queries, keys, dtype=torch.float64)


@torch.no_grad()
def logits_of(plain: Any, given: Tensor) -> Tensor:
    return plain(given, attention_mask=everything(*given.shape[1:] * 2)).logits


@contextmanager
def counting(model: Any) -> Iterator[list[int]]:
    """How many tokens each forward pass computes."""
    counts: list[int] = []
    hook = model.get_input_embeddings().register_forward_hook(lambda _, given, __: counts.append(given[0].numel()))
    yield counts
    hook.remove()


def close(got: Tensor, expected: Tensor) -> None:
    """Equal but for the rounding of norms and angles, which transformers computes in float32."""
    assert len(set(expected.argmax(-1).flatten().tolist())) > 1
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-4 * float(expected.std()))


def vocabulary() -> Vocabulary:
    return Vocabulary(SIZE, delimiters=range(0, 200, 5), stops=[STOP], suppress=[MASK])


def cut(cache: DynamicCache, length: int) -> DynamicCache:
    """Transformers' own cache, cut to what is frozen."""
    if length and cache.get_seq_length() > length:
        cache.crop(length - cache.get_seq_length())
    return cache if length else DynamicCache()


@torch.no_grad()
def test_without_a_cache_it_is_plain_attention(model: Any, plain: Any) -> None:
    given = torch.cat([ids(20, masks=6), ids(20, seed=1, masks=6)])
    close(model(given).logits, torch.cat([logits_of(plain, row[None]) for row in given]))


@torch.no_grad()
def test_a_frozen_prefix_is_neither_computed_nor_written_again(model: Any, plain: Any) -> None:
    given, expected = ids(20, masks=6), logits_of(plain, ids(20, masks=6))
    cache = SuffixCache.of(model, batch=1, capacity=24)
    for tensor in (*cache.prefix.k, *cache.prefix.v):
        tensor.fill_(torch.nan)
    with counting(model) as counts:
        with cache.appending([11]):
            close(model(given, past_key_values=cache).logits, expected)
        before = [tensor.clone() for tensor in (*cache.prefix.k, *cache.prefix.v)]
        with cache.appending([2]):
            close(model(given[:, 11:], past_key_values=cache).logits, expected[:, 11:])
        assert cache.get_seq_length() == 13
        with cache.appending([0]):
            close(model(given[:, 13:], past_key_values=cache).logits, expected[:, 13:])
    assert counts == [20, 9, 7]
    for tensor, old in zip((*cache.prefix.k, *cache.prefix.v), before, strict=True):
        assert torch.equal(tensor[:, :, :11], old[:, :, :11])
        assert not tensor[:, :, :13].isnan().any()
        assert tensor[:, :, 13:].isnan().all()
    cache.reset()
    assert cache.get_seq_length() == 0


@torch.no_grad()
def test_hidden_states_are_the_plain_ones(model: Any, plain: Any) -> None:
    runner = cached(model, mask_id=MASK)
    given = ids(18, seed=2, masks=7)
    hidden = runner(given[0], torch.arange(18), torch.tensor([0, 18], dtype=torch.int32))
    base = getattr(plain, "bert", None) or plain.model
    expected = base(given, attention_mask=everything(18, 18))[0][0]
    if isinstance(runner.lm_head, torch.nn.Linear):
        close(hidden, expected)
    else:  # BERT's head is more than a product, so that the pass itself ends with the logits
        expected = plain.cls(expected)
        close(hidden, expected)
    close(runner.lm_head(hidden), logits_of(plain, given)[0])


@pytest.mark.parametrize("options", [{}, {"block_length": 4}, {"refresh_every": 3}, {"lookahead": 5}], ids=str)
@pytest.mark.parametrize("name", ["guarded", "islands"])
@torch.no_grad()
def test_every_pass_of_a_run_is_that_of_a_plain_cache(model: Any, plain: Any, name: str, options: dict) -> None:
    """Each pass once more by transformers' eager attention and DynamicCache, which is cut to what is frozen."""
    recorder = Recorder(cached(model, mask_id=MASK))
    prompt, options = ids(9, seed=3)[0].tolist(), lsp.Options(**options)
    with counting(model) as counts:
        state = last(lsp.decode(recorder, [prompt], 16, SCHEDULERS[name], vocabulary(), options))
    theirs = DynamicCache()
    for (segment,) in recorder.passes:
        theirs = cut(theirs, segment.held)
        expected = plain(
            torch.tensor([segment.tokens]),
            position_ids=torch.tensor([segment.positions]),
            attention_mask=everything(len(segment.tokens), segment.held + len(segment.tokens)),
            past_key_values=theirs,
        ).logits[0]
        torch.testing.assert_close(segment.logits, expected, rtol=0, atol=1e-4 * float(expected.std()))
        theirs = cut(theirs, segment.held + segment.append)
    assert counts == [len(segment.tokens) for (segment,) in recorder.passes]
    assert sum(segment.held for (segment,) in recorder.passes) > 9  # the prompt at least was frozen and left out
    assert len(set(state.canvases[0].run.tolist())) > 2


def test_generate_is_the_loop_of_this_package(model: Any) -> None:
    """A padded batch gives each prompt's own text; after a stop there is padding."""
    prompts = [ids(n, seed=n)[0] for n in (9, 4, 6)]
    batch = torch.stack([torch.cat([torch.full((9 - len(p),), PAD), p]) for p in prompts])
    real = torch.stack([torch.arange(9) >= 9 - len(p) for p in prompts]).long()
    stops = sorted({int(p) for p in ids(60, seed=8)[0]})  # many, so that texts end early
    given = {"max_new_tokens": 12, "custom_generate": generate, "mask_id": MASK, "scheduler": SCHEDULER}
    out = model.generate(batch, attention_mask=real, eos_token_id=stops, **given)
    known = Vocabulary(SIZE, stops=stops, suppress=[MASK])
    expected = lsp.generate(
        cached(model, mask_id=MASK), prompts, max_new_tokens=12, scheduler=SCHEDULER, vocabulary=known
    )
    longest = max(len(each.tokens) for each in expected)
    assert torch.equal(out[:, :9], batch)
    assert out.shape == (3, 9 + longest)
    assert [row[9:].tolist() for row in out] == [e.tokens + [PAD] * (longest - len(e.tokens)) for e in expected]
    assert len({len(each.tokens) for each in expected}) > 1
    (alone,) = model.generate(prompts[1][None], eos_token_id=stops, **given)
    assert alone[4:].tolist() == expected[1].tokens


def test_generate_takes_options_and_a_temperature(model: Any, plain: Any) -> None:
    given = {"max_new_tokens": 8, "custom_generate": generate, "mask_id": MASK, "scheduler": "threshold"}
    uncached = lsp.adapt(lambda one: logits_of(plain, one), vocab_size=SIZE, mask_id=MASK)
    (expected,) = lsp.generate(uncached, [ids(6)[0].tolist()], max_new_tokens=8, scheduler="threshold", cache="none")
    out = model.generate(ids(6), eos_token_id=None, options={"cache": "none"}, **given)
    assert out[0, 6:].tolist() == expected.tokens
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        drawn.append(model.generate(ids(6), do_sample=True, temperature=3.0, top_k=0, top_p=1.0, **given).tolist())
    assert drawn[0] == drawn[1] != drawn[2]


REGISTERED = {"llada": llada, "dream": dream, "a2d-qwen3": qwen3}


@pytest.fixture(params=REGISTERED, scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    return REGISTERED[request.param]()


@pytest.fixture(scope="module")
def registered(folder: Path) -> Any:
    lsp.register()
    return AutoModel.from_pretrained(folder, dtype=torch.float64, attn_implementation=ATTENTION)


def test_a_registered_class_computes_the_suffix_alone(registered: Any, case: Case) -> None:
    rows = [ids_of(case, 20, seed=seed, masks=6) for seed in (0, 1)]
    given, expected = torch.tensor(rows), torch.stack([case.logits(row) for row in rows])
    cache = SuffixCache.of(registered, batch=2, capacity=24)
    with counting(registered) as counts:
        for first, append in ((0, 11), (11, 2), (13, 0)):
            with cache.appending([append] * 2):
                logits = registered(given[:, first:], past_key_values=cache).logits
            torch.testing.assert_close(logits, expected[:, first:], rtol=1e-9, atol=1e-9)
    assert counts == [40, 18, 14]
    packed = torch.cat([given[:, 13:][0], given[:, 13:][1]])[None]
    with cache.appending([3, 0], cu_seqlens=torch.tensor([0, 7, 14], dtype=torch.int32)):
        places = torch.arange(13, 20).repeat(2)[None]
        logits = registered(packed, position_ids=places, past_key_values=cache).logits
    torch.testing.assert_close(logits[0], expected[:, 13:].flatten(0, 1), rtol=1e-9, atol=1e-9)
    assert cache.prefix.frozen == [16, 13]


def test_a_registered_class_generates(registered: Any, case: Case, exact: Transformer) -> None:
    prompts = [ids_of(case, n, seed=n) for n in (9, 4)]
    batch = torch.tensor([prompts[0], [0] * 5 + prompts[1]])
    real = torch.tensor([[1] * 9, [0] * 5 + [1] * 4])
    given = {"max_new_tokens": 12, "custom_generate": generate, "scheduler": SCHEDULER, "eos_token_id": None}
    out = registered.generate(batch, attention_mask=real, **given)
    known = Vocabulary(case.vocab_size, suppress=[7])
    expected = lsp.generate(exact, prompts, max_new_tokens=12, scheduler=SCHEDULER, vocabulary=known)
    assert [row[9:].tolist() for row in out] == [each.tokens for each in expected]
    assert len({token for each in expected for token in each.tokens}) > 3


@pytest.mark.parametrize("shifted", [False, True])
def test_weights_of_a_public_checkpoint_decode_in_transformers_own_class(shifted: bool, tmp_path: Path) -> None:
    case = qwen3(model_type="qwen3")
    del case.config["auto_map"]
    theirs = AutoModelForCausalLM.from_pretrained(
        case.save(tmp_path), dtype=torch.float64, attn_implementation=ATTENTION
    )
    theirs.config.is_causal = False
    ours = lsp.load(tmp_path, dtype=torch.float64, shifted=shifted)
    prompt = ids_of(case, 9, seed=1)
    known = Vocabulary(case.vocab_size, suppress=[7])
    (expected,) = lsp.generate(ours, [prompt], max_new_tokens=16, scheduler=SCHEDULER, vocabulary=known)
    (got,) = lsp.generate(
        cached(theirs, mask_id=7, shifted=shifted), [prompt], max_new_tokens=16, scheduler=SCHEDULER, vocabulary=known
    )
    assert (got.tokens, got.passes, got.positions) == (expected.tokens, expected.passes, expected.positions)
    assert len(set(got.tokens)) > 3


def in_training(model: Any) -> Any:
    for part in model.modules():
        if hasattr(part, "attention_dropout"):
            part.attention_dropout = 0.1
    return model.train()


FORWARDS: dict[str, tuple[Callable[[], Any], str]] = {
    "a causal model": (
        lambda: qwen(ATTENTION, is_causal=True)(ids(5)),
        "got a causal Qwen3Attention; .*is_causal = False",
    ),
    "padding": (
        lambda: gemma3(ATTENTION)(ids(5), attention_mask=torch.tensor([[0, 1, 1, 1, 1]])),
        "Invalid attention_mask: expected no padding",
    ),
    "a mask": (
        lambda: gemma3(ATTENTION)(ids(5), attention_mask=everything(5, 5).index_fill(3, torch.tensor([2]), -1e9)),
        "Invalid attention_mask: expected no padding",
    ),
    "a window": (
        lambda: gemma3(ATTENTION, layer_types=["full_attention"] * 2 + ["sliding_attention"])(ids(5)),
        "Invalid sliding_window: expected None with lsp_suffix, got",
    ),
    "training": (lambda: in_training(gemma3(ATTENTION))(ids(5)), "Invalid dropout: expected 0"),
    "other attention": (
        lambda: cached(gemma3("sdpa")),
        "Invalid attn_implementation: expected 'lsp_suffix', got 'sdpa'",
    ),
}


@pytest.mark.abuse("models and checkpoints")
@pytest.mark.parametrize("name", FORWARDS)
def test_what_the_attention_cannot_do_is_refused(name: str) -> None:
    run, message = FORWARDS[name]
    with pytest.raises(ValueError, match=message):
        run()


@pytest.mark.abuse("models and checkpoints")
@torch.no_grad()
def test_a_cache_that_nothing_read_freezes_nothing() -> None:
    """With another attention the prefix would be missing: the pass cannot end."""
    model = gemma3("eager")
    cache = SuffixCache.of(model, batch=1, capacity=8)
    with pytest.raises(RuntimeError, match="expected attend for all 3 layers, got none for"), cache.appending([2]):
        model(ids(5), past_key_values=cache, attention_mask=everything(5, 5))
    assert cache.get_seq_length() == 0


@pytest.mark.abuse("models and checkpoints")
def test_what_a_cache_cannot_do_is_refused(tmp_path: Path) -> None:
    cache = SuffixCache.of(gemma3(ATTENTION), batch=1, capacity=8)
    with pytest.raises(NotImplementedError, match=r"Invalid call of crop: expected cache.prefix.truncate"):
        cache.crop(-1)
    with pytest.raises(NotImplementedError, match="Invalid call of a method for beams"):
        cache.layers[0].reorder_cache(torch.tensor([0]))
    lsp.register()
    registered = AutoModel.from_pretrained(llada().save(tmp_path))
    with pytest.raises(TypeError, match="Invalid past_key_values: expected a SuffixCache, got a DynamicCache"):
        registered(ids(5), past_key_values=DynamicCache())
    cache = SuffixCache.of(registered, batch=1, capacity=8)
    with pytest.raises(ValueError, match="Invalid attention_mask: expected no padding"), cache.appending([0]):
        registered(ids(2), attention_mask=torch.tensor([[0, 1]]), past_key_values=cache)


GENERATIONS: dict[str, tuple[dict[str, Any], str]] = {
    "beams": ({"num_beams": 2}, "Invalid num_beams: expected 1, got 2"),
    "several": ({"num_return_sequences": 2, "do_sample": True}, "Invalid num_return_sequences: expected 1, got 2"),
    "a dictionary": ({"return_dict_in_generate": True}, "Invalid return_dict_in_generate: expected False"),
    "a penalty": ({"repetition_penalty": 1.5}, "Invalid generation config: .*RepetitionPenaltyLogitsProcessor"),
    "top k": ({"do_sample": True, "top_k": 5}, "Invalid generation config: .*TopKLogitsWarper"),
    "a time": ({"max_time": 1.0}, "Invalid generation config: expected nothing that needs MaxTimeCriteria, got it"),
    "no mask": ({"mask_id": None}, "Invalid mask_id: expected a number, as the model's config does not name it"),
    "a scheduler": ({"scheduler": "none"}, "Invalid scheduler"),
    "padding": (
        {"attention_mask": torch.tensor([[1, 1, 1, 0]])},
        "Invalid attention_mask: expected padding on the left",
    ),
}


@pytest.mark.abuse("models and checkpoints")
@pytest.mark.parametrize("name", GENERATIONS)
def test_what_generate_cannot_do_is_refused(name: str) -> None:
    given, message = GENERATIONS[name]
    with pytest.raises(ValueError, match=message):
        gemma3(ATTENTION).generate(
            ids(4), **{"max_new_tokens": 4, "custom_generate": generate, "mask_id": MASK} | given
        )
