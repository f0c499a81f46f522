"""Any model that maps token ids to logits, in the protocol of the decoding loop. Uncached.

A pass gives the model one whole sequence after the other, so there is no padding and nothing is approximated: what a
cache would hold as K/V is held as tokens and computed anew. The cost is counted accordingly.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from lsp.models.head import head as deprecated_head
from lsp.models.protocol import Model
from lsp.models.transformer import check_pass
from lsp_kernels import PrefixCache
from lsp_kernels.errors import check_attention_lengths, check_index

Output = str | int | Callable[[Any], Tensor]
POSITION_TABLES = ("position_embeddings", "embed_positions")
UNCACHED = (
    "an adapted model is uncached: every pass computes whole sequences, and positions count them; "
    "lsp.load decodes LLaDA, Dream and Tiny-A2D checkpoints on the prefix cache"
)


class UncachedWarning(UserWarning):
    """A model decodes without a cache. Shown once."""


warnings.simplefilter("once", UncachedWarning)


@dataclass(frozen=True)
class AdaptedConfig:
    """What a decoder must know of an adapted model; the names are those of `lsp.models.ModelConfig`."""

    vocab_size: int
    mask_id: int | None
    stop_ids: tuple[int, ...]
    max_length: int | None
    shifted: bool


class TokenCache(PrefixCache):
    """The frozen prefixes of a batch as tokens: a cache whose one layer holds ids, with the same `begin` and `advance`.

    Attributes
    ----------
    tokens : Tensor, int64 [batch, capacity]
        Slots past `lengths` hold anything.
    """

    def __init__(self, batch: int, capacity: int, *, device: torch.device | str = "cpu") -> None:
        super().__init__(1, batch, 1, capacity, 1, dtype=torch.int64, device=device)
        self.tokens = self.k[0][:, 0, :, 0]
        self.v = self.k

    def _check_served(self) -> None:
        """Nothing attends to ids, so any dtype and head dimension will do."""

    def whole(
        self, tokens: Tensor, positions: Tensor, borders: Sequence[int], append: Sequence[int], mask: int | None
    ) -> list[tuple[Tensor, Tensor]]:
        """Every sequence with its frozen prefix, and where the tokens of the pass stand in it.

        The front of each is written behind its prefix. A mask that the pass leaves out is put where it was: a model
        that is not told positions counts tokens.
        """
        out = []
        for b, (begin, end) in enumerate(pairwise(borders)):
            held, new, where = self._lengths[b], tokens[begin:end], positions[begin:end]
            check_places(b, where.tolist(), held, mask)
            self.tokens[b, held : held + append[b]] = new[: append[b]]
            length = int(where[-1]) + 1 if end > begin else held
            sequence = torch.full((length,), -1 if mask is None else mask, dtype=torch.int64, device=tokens.device)
            sequence[:held], sequence[where] = self.tokens[b, :held], new
            out.append((sequence, where))
        self.written()
        return out


def check_places(b: int, where: Sequence[int], held: int, mask: int | None) -> None:
    """Refuses positions of a sequence that do not rise from the end of its frozen prefix on, or leave a gap there."""
    rising = all(p < q for p, q in pairwise(where))
    if where and (where[0] != held or not rising):
        expected = f"rising positions from {held}, the end of the frozen prefix"
        raise ValueError(f"Invalid positions of sequence {b}: expected {expected}, got {where}")
    if where and mask is None and where[-1] != held + len(where) - 1:
        raise ValueError(f"Invalid positions of sequence {b}: expected no gaps without a mask id, got {where}")


class Adapted:
    """A model in the protocol of `Transformer`, whose "hidden states" are the logits themselves. Made by `adapt`."""

    def __init__(
        self, forward: Callable[[Tensor], Any], config: AdaptedConfig, device: torch.device, output: Output = "logits"
    ) -> None:
        self.run, self.config, self.device, self.output = forward, config, device, output

    def __repr__(self) -> str:
        return f"Adapted({type(self.run).__name__}, {self.config}, uncached)"

    @torch.no_grad()
    def __call__(
        self,
        tokens: Tensor,
        positions: Tensor,
        cu_seqlens: Tensor,
        cache: PrefixCache | None = None,
        append: Sequence[int] | None = None,
    ) -> Tensor:
        """One pass: logits [T, V] of packed tokens. As `Transformer.forward`; what `positions` skip is a mask."""
        check_pass(tokens, positions, cu_seqlens, self.config.vocab_size, self.device)
        check_index("cu_seqlens", cu_seqlens, None, tokens)
        borders = cu_seqlens.tolist()
        batch = len(borders) - 1
        cache = self.new_cache(batch, 0) if cache is None else cache
        if not isinstance(cache, TokenCache):
            raise TypeError(f"Invalid cache: expected one from new_cache, got a {type(cache).__name__}")
        append = [0] * batch if append is None else list(append)
        cache.begin(cu_seqlens, append)
        check_attention_lengths(len(tokens), cache.capacity, cu_seqlens, cache.lengths, torch.tensor(append))
        whole = cache.whole(tokens, positions, borders, append, self.config.mask_id)
        parts = [self._logits(sequence)[where] for sequence, where in whole if len(where)]
        cache.advance()
        unused = len(tokens) - borders[-1]  # past the last border: tokens of nobody
        if len(parts) == 1 and not unused:
            return parts[0]
        like = parts[0] if parts else torch.zeros(0, self.config.vocab_size, device=self.device)
        return torch.cat([*parts, like.new_zeros(unused, self.config.vocab_size)])

    def _logits(self, sequence: Tensor) -> Tensor:
        with in_eval_mode(self.run):
            out = logits_of(self.run(sequence[None]), self.output)
        expected = [1, len(sequence), self.config.vocab_size]
        if list(out.shape) != expected:
            raise ValueError(f"Invalid logits of the model: expected {expected}, got {list(out.shape)}")
        return out[0]

    def lm_head(self, logits: Tensor) -> Tensor:
        """The logits as they are: the model has computed them."""
        return logits

    head = deprecated_head
    cached = False  # a cache holds tokens, and every pass computes whole sequences

    def new_cache(self, batch: int, capacity: int) -> TokenCache:
        """Room for the frozen tokens of this many sequences."""
        return TokenCache(batch, capacity, device=self.device)


def adapt(
    model: Any,
    *,
    vocab_size: int | None = None,
    mask_id: int | None = None,
    stop_ids: Iterable[int] | None = None,
    max_length: int | None = None,
    shifted: bool = False,
    device: torch.device | str | None = None,
    output: Output = "logits",
) -> Model:
    """Makes any ``forward(input_ids) -> logits`` model decode. Uncached: every pass computes whole sequences.

    Parameters
    ----------
    model : Module or callable
        From ids int64 [1, L] to logits [1, L, V], which may also come in a Hugging Face output, a mapping or a tuple. A
        module in training mode runs in evaluation mode, without dropout, and is left as it was. A model of this
        package, or of its protocol, is returned as it is, cache and all.
    vocab_size, mask_id, stop_ids, max_length : optional
        By default what the model says: the columns of its output embedding or ``config.vocab_size``;
        ``config.mask_token_id``; ``config.eos_token_id``; ``config.max_position_embeddings`` or
        ``max_sequence_length``, less the rows of its position table that cannot be used. The size of the vocabulary is
        needed.
    shifted : bool
        Whether position p is predicted by row p - 1, as in Dream.
    device : optional
        Where the ids go, by default where the model's parameters are.
    output : str, int or callable
        Where the logits are in what the model returns: the name of a field or key, the place in a tuple, or a function
        that takes them out. By default ``"logits"``, and the first item of a tuple.

    Examples
    --------
    >>> import torch, lsp
    >>> model = lsp.adapt(torch.nn.Embedding(50, 50), vocab_size=50, mask_id=49)
    >>> border = torch.tensor([0, 4], dtype=torch.int32)
    >>> model(torch.tensor([3, 1, 49, 49]), torch.arange(4), border).shape
    torch.Size([4, 50])
    """
    inner = getattr(model, "transformer", model)
    for one in (inner, model):
        if isinstance(one, Model):
            return one
    if not callable(model):
        raise TypeError(f"Invalid model: expected a module or a function, got a {type(model).__name__}")
    found = config_of(model, vocab_size, mask_id, stop_ids, max_length, shifted)
    if device is None:
        weights = model.parameters() if isinstance(model, nn.Module) else iter(())
        device = next((weight.device for weight in weights), torch.device("cpu"))
    warnings.warn(UNCACHED, UncachedWarning, stacklevel=2)
    return Adapted(
        model, found, torch.empty(0, device=device).device, output
    )  # with its index, as tensors there have it


def config_of(
    model: Any,
    vocab_size: int | None,
    mask_id: int | None,
    stop_ids: Iterable[int] | None,
    max_length: int | None,
    shifted: bool,
) -> AdaptedConfig:
    """What was given, and otherwise what the model says of itself."""
    config = getattr(model, "config", None)
    size = vocab_size if vocab_size is not None else _columns(model) or _first(None, config, "vocab_size")
    if size is None:
        raise ValueError("Invalid vocab_size: expected a number, as the model has no config that names it, got None")
    ends = _first(None if stop_ids is None else tuple(stop_ids), config, "eos_token_id")
    return AdaptedConfig(
        vocab_size=size,
        mask_id=_first(mask_id, config, "mask_token_id"),
        stop_ids=() if ends is None else tuple(ends) if isinstance(ends, list | tuple) else (ends,),
        max_length=max_length if max_length is not None else _longest(model, config),
        shifted=shifted,
    )


@contextmanager
def in_eval_mode(model: Any) -> Iterator[None]:
    """Runs a module without dropout, and leaves every part of it in the mode it was in."""
    training = [part for part in model.modules() if part.training] if isinstance(model, nn.Module) else []
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True


def _columns(model: Any) -> int | None:
    """How many logits a Hugging Face model returns for a position: its table may be larger than its vocabulary."""
    find = getattr(model, "get_output_embeddings", None)
    weight = getattr(find() if callable(find) else None, "weight", None)
    return len(weight) if isinstance(weight, Tensor) and weight.dim() == 2 else None


def _longest(model: Any, config: Any) -> int | None:
    """The longest sequence that a model takes. Roberta and others begin their table of positions after an offset."""
    limits = [_first(None, config, "max_position_embeddings", "max_sequence_length")]
    for name, part in model.named_modules() if isinstance(model, nn.Module) else ():
        if name.endswith(POSITION_TABLES) and isinstance(part, nn.Embedding):
            offset = getattr(part, "offset", None) or (0 if part.padding_idx is None else part.padding_idx + 1)
            limits.append(part.num_embeddings - offset)
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else None


def logits_of(output: Any, where: Output = "logits") -> Tensor:
    """The logits in whatever a model returns."""
    if callable(where):
        found = where(output)
    elif isinstance(where, int):
        found = output[where] if isinstance(output, tuple | list) and -len(output) <= where < len(output) else output
    elif isinstance(output, Mapping) and where in output:
        found = output[where]
    elif where == "logits" and isinstance(output, tuple | list) and output and not hasattr(output, "logits"):
        found = output[0]
    else:
        found = getattr(output, where, output)
    if not isinstance(found, Tensor):
        names = f" with {', '.join(map(str, output))}; say which by output=" if isinstance(output, Mapping) else ""
        raise TypeError(f"Invalid output of the model: expected {where}, got a {type(found).__name__}{names}")
    return found


def _first(given: Any, config: Any, *names: str) -> Any:
    """What was given, else the first of these that the config has."""
    if given is not None:
        return given
    return next((value for name in names if (value := getattr(config, name, None)) is not None), None)
