"""Passes of models with the shape of LLaDA-8B and Dream-7B, random weights, from the tokens to what is committed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.gpu.case import OURS, Case, Contender, Plan, Run
from bench.gpu.checks import first
from bench.gpu.plain import PlainCache, exact_pass, plain_blocks
from bench.gpu.shapes import Shapes
from bench.support import softmax_confidence, vocabulary_of
from lsp.decoding.graphs import capture
from lsp.models.compiled import CompiledTransformer, run_block
from lsp.models.config import ModelConfig
from lsp.models.transformer import Transformer
from lsp_kernels import Commit, PrefixRule, Workspace, linear_commit_prefix

RULE = PrefixRule(1.0, 1.0, snap=False)  # scores every mask
FACTOR = 2.0  # our error may be so many times that of torch's attention


def random_model(config: ModelConfig, layers: int, dtype: torch.dtype = torch.bfloat16) -> Transformer:
    """Made on the GPU at once. Weights are so large that masks predict different tokens."""
    config = replace(config, n_layers=layers, mask_id=0)
    with torch.device("meta"):
        model = Transformer(config).requires_grad_(False).eval()
    for module in model.modules():
        for name, shape in [(name, each.shape) for name, each in module.named_parameters(recurse=False)]:
            value = torch.ones(shape, dtype=dtype, device="cuda")
            if len(shape) == 2:
                value.normal_(std=2.0 * config.d_model**-0.5)
            setattr(module, name, nn.Parameter(value, requires_grad=False))
    return model


def plans(shapes: Shapes, layers: int) -> Iterator[Plan]:
    for shape, config in shapes.models.items():
        for batch in shapes.batches:
            name = f"{shape} with {layers} layers, batch {batch}, {shapes.suffix} on {shapes.prefix}"
            facts = {"model": shape, "layers": layers, "of": config.n_layers, "batch": batch, "dtype": "bfloat16"}
            facts |= {"prefix": shapes.prefix, "suffix": shapes.suffix}
            make = partial(pass_case, config, layers, batch, shapes.prefix, shapes.suffix)
            yield Plan("a pass of the model, with its head", name, facts, make)


class Compiled(CompiledTransformer):
    """The same weights, with compiled blocks."""

    def __init__(self, model: Transformer) -> None:
        self.__dict__.update(model.__dict__)
        self.run_block = torch.compile(run_block, dynamic=True, fullgraph=True)


class Work:
    """A batch whose prefixes are frozen by a pass; the suffixes are masks, all of them scored."""

    def __init__(self, config: ModelConfig, layers: int, batch: int, prefix: int, suffix: int) -> None:
        self.model = random_model(config, layers)
        ids = torch.randint(2, config.vocab_size, (batch, prefix + suffix), device="cuda")
        ids[:, prefix:] = 0
        places = torch.arange(prefix + suffix, device="cuda").expand(batch, -1)
        self.cache = self.model.new_cache(batch, prefix + suffix)
        self.model(
            ids[:, :prefix].flatten(), places[:, :prefix].flatten(), every(prefix, batch), self.cache, [prefix] * batch
        )
        self.plain = PlainCache.of(self.cache, prefix)
        self.borders, self.workspace = every(suffix, batch), Workspace()
        self.n_active = torch.full((batch,), suffix, dtype=torch.int32, device="cuda")
        self.vocabulary = vocabulary_of(config.vocab_size).to("cuda")
        self.batch, self.suffix = batch, suffix
        self.tokens, self.positions = ids[:, prefix:].flatten(), places[:, prefix:].flatten()
        self.all_tokens, self.all_positions = ids.flatten(), places.flatten()

    def commit(self, hidden: Tensor) -> Commit:
        options = {"rule": RULE, "vocabulary": self.vocabulary, "workspace": self.workspace}
        return linear_commit_prefix(hidden, self.model.lm_head.weight, self.borders, self.n_active, **options)

    def ours(self) -> tuple[Tensor, Tensor]:
        return self.by(self.model)

    def by(self, model: Transformer) -> tuple[Tensor, Tensor]:
        hidden = model(self.tokens, self.positions, self.borders, self.cache, [0] * self.batch)
        return hidden, self.commit(hidden).tokens

    def capture(self) -> Run:
        """The same in one CUDA graph: lengths are uploaded, everything else is a replay."""
        self.ours()  # grows workspaces, which a capture cannot
        self.cache.begin(self.borders, [0] * self.batch)
        replay = capture(self.layers, self.tokens.device)

        def run() -> tuple[Tensor, ...]:
            self.cache.begin(self.borders, [0] * self.batch)
            found = replay()
            self.cache.written()
            self.cache.advance()
            return found

        return run

    def layers(self) -> tuple[Tensor, Tensor]:
        """What can be captured: the pass that the cache has begun."""
        hidden = self.model.run_layers(self.tokens, self.positions, self.cache)
        return hidden, self.commit(hidden).tokens

    @plain_blocks()
    def concatenated(self) -> tuple[Tensor, Tensor]:
        hidden = self.model.run_layers(self.tokens, self.positions, self.plain)
        return hidden, softmax_confidence(F.linear(hidden, self.model.lm_head.weight))[0]

    @plain_blocks()
    def uncached(self) -> tuple[Tensor, Tensor]:
        """Everything in every pass, as LLaDA's own loop does, but only the masks are scored."""
        cache = PlainCache.empty(self.cache)
        hidden = self.model.run_layers(self.all_tokens, self.all_positions, cache)
        hidden = hidden.view(self.batch, -1, hidden.size(-1))[:, -self.suffix :].flatten(0, 1)
        return hidden, softmax_confidence(F.linear(hidden, self.model.lm_head.weight))[0]


def every(length: int, batch: int) -> Tensor:
    """Borders of sequences of one length."""
    return torch.arange(0, (batch + 1) * length, length, dtype=torch.int32, device="cuda")


class Truth:
    """Hidden states of the pass in float32, and how far those in 16 bits may be from them."""

    def __init__(self, exact: Tensor, usual: Tensor, weight: Tensor) -> None:
        self.exact, self.weight = exact, weight
        self.allowed = FACTOR * self.distance(usual)

    def distance(self, hidden: Tensor) -> float:
        return float((hidden.float() - self.exact).square().mean().sqrt() / self.exact.square().mean().sqrt())

    def check(self, found: tuple[Tensor, Tensor]) -> str | None:
        """The hidden states are about the true ones, and the tokens are the best ones for them."""
        hidden, tokens = found
        error = self.distance(hidden)
        far = None if error <= self.allowed else f"hidden: wrong by {error:.3g}, expected at most {self.allowed:.3g}"
        logits = F.linear(hidden, self.weight)
        short = (logits.amax(-1) - logits.gather(-1, tokens[:, None])[:, 0]).float()
        room = 4 * torch.finfo(logits.dtype).eps * logits.abs().amax(-1).float()  # logits are rounded here
        worse = int((short > room).sum())
        return first(far, f"tokens: {worse} of {len(tokens)} are not the best" if worse else None)


def pass_case(config: ModelConfig, layers: int, batch: int, prefix: int, suffix: int) -> Case:
    work = Work(config, layers, batch, prefix, suffix)
    weight = work.model.lm_head.weight
    exact = exact_pass(work.model, work.tokens, work.positions, work.plain)
    cached = Truth(exact, work.concatenated()[0], weight)
    whole = exact_pass(work.model, work.all_tokens, work.all_positions, PlainCache.empty(work.cache))
    whole = whole.view(batch, -1, whole.size(-1))[:, -suffix:].flatten(0, 1)
    uncached = Truth(whole, work.uncached()[0], weight)
    contenders = [
        Contender(OURS, work.ours, cached.check),
        Contender("ours, blocks compiled", partial(work.by, Compiled(work.model)), cached.check),
        Contender("cat + SDPA, float64 softmax", work.concatenated, cached.check),
        Contender("uncached, float64 softmax", work.uncached, uncached.check),
    ]
    missing = {}
    try:
        contenders.insert(1, Contender("ours, captured", work.capture(), cached.check))
    except RuntimeError as error:
        missing["ours, captured"] = f"cannot be captured: {error}"
    return Case(contenders, missing=missing)
