"""The contiguous, append-only K/V cache of the frozen prefixes of a batch."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ._checks import FLOATS
from ._memory import free_bytes, readable
from ._pass import Pass, Tables, upload
from .attention import suffix_attention
from .errors import as_integer, check_borders, check_index, values_are_free
from .workspace import Workspace

logger = logging.getLogger(__name__)

SHAPE = ("n_layers", "batch", "n_kv_heads", "capacity", "head_dim")


class PrefixCache:
    """K and V of the frozen prefix of every sequence, for every layer, in one contiguous block each.

    A pass is `begin`, then `attend` once per layer, then `advance`. Only `advance` makes the appended tokens part of
    the prefixes, so a pass that is interrupted leaves them as they were. It freezes nothing that was not written.

    What is between `begin` and `advance` can be captured in a CUDA graph: all lengths are on the device, at addresses
    that stay. A replay is `begin`, the graph, `written`, `advance`, with as many sequences as were captured; those that
    are not used are empty.

    Parameters
    ----------
    n_layers, batch, n_kv_heads, capacity, head_dim : int
        Each layer holds K and V of shape [batch, n_kv_heads, capacity, head_dim]: `batch` rows, one for each sequence
        at a time. All of it is allocated at once; `bytes_needed` gives the size beforehand. head_dim is a multiple of
        16 from 32 to 256.
    dtype : torch.dtype
        float32, bfloat16 or float16; float64 for checks by the reference.
    device : torch.device or str

    Attributes
    ----------
    lengths : Tensor, int32 [batch]
        How many tokens of each row are frozen, on the device.
    k, v : list of Tensor
        One per layer. What lies past `lengths` may be anything.

    Examples
    --------
    >>> import torch
    >>> from lsp_kernels import PrefixCache
    >>> cache = PrefixCache(n_layers=1, batch=2, n_kv_heads=1, capacity=64, head_dim=32)
    >>> cache
    PrefixCache(n_layers=1, batch=2, n_kv_heads=1, capacity=64, head_dim=32, dtype=torch.float32, 32.0 KiB)
    >>> q, k, v = torch.randn(3, 7, 1, 32)
    >>> cache.begin(torch.tensor([0, 4, 7], dtype=torch.int32), append=[4, 1])
    >>> out = cache.attend(0, q, k, v)
    >>> cache.advance()
    >>> cache.lengths
    tensor([4, 1], dtype=torch.int32)
    """

    def __init__(
        self,
        n_layers: int,
        batch: int,
        n_kv_heads: int,
        capacity: int,
        head_dim: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.n_layers = as_integer("n_layers", n_layers, 1)
        self.batch = as_integer("batch", batch, 1)
        self.n_kv_heads = as_integer("n_kv_heads", n_kv_heads, 1)
        self.capacity = as_integer("capacity", capacity, 0)
        self.head_dim = as_integer("head_dim", head_dim, 1)
        self.dtype, self.device = dtype, torch.device(device)
        self._check_served()
        self.nbytes = self.bytes_needed(n_layers, batch, n_kv_heads, capacity, head_dim, dtype=dtype)
        if self.nbytes > (free := free_bytes(self.device)):
            room = f"room for {self!r}, {self.nbytes} bytes"
            raise MemoryError(f"Invalid capacity: expected {room}, got {free:.0f} free on {self.device}")
        logger.info("allocating %s on %s for %r", readable(self.nbytes), self.device, self)
        self.k, self.v = self._allocate(), self._allocate()
        self.lengths = torch.zeros(batch, dtype=torch.int32, device=self.device)
        self.workspace = Workspace()
        self._lengths = [0] * batch  # `lengths` on the host, to be read without a synchronisation
        self._tables = Tables(batch, self.device)
        self._pass: Pass | None = None  # the pass that has begun

    @staticmethod
    def bytes_needed(
        n_layers: int, batch: int, n_kv_heads: int, capacity: int, head_dim: int, *, dtype: torch.dtype = torch.float32
    ) -> int:
        """The size in bytes of the K and V of such a cache.

        >>> PrefixCache.bytes_needed(32, 1, 32, 4096, 128, dtype=torch.bfloat16) // 2**20
        2048
        """
        return 2 * n_layers * batch * n_kv_heads * capacity * head_dim * dtype.itemsize

    def _check_served(self) -> None:
        """Raises unless `suffix_attention` serves caches of this dtype and head dimension."""
        if self.dtype not in (*FLOATS, torch.float64):
            raise TypeError(f"Invalid dtype: expected float32, bfloat16, float16 or float64, got {self.dtype}")
        if self.head_dim % 16 or not 32 <= self.head_dim <= 256:
            raise ValueError(f"Invalid head_dim: expected a multiple of 16 from 32 to 256, got {self.head_dim}")

    def _allocate(self) -> list[Tensor]:
        shape = self.batch, self.n_kv_heads, self.capacity, self.head_dim
        return [torch.empty(shape, dtype=self.dtype, device=self.device) for _ in range(self.n_layers)]

    def begin(self, cu_seqlens: Tensor | None, append: Sequence[int], slots: Sequence[int] | None = None) -> None:
        """Starts a pass.

        Parameters
        ----------
        cu_seqlens : Tensor, int32 [B + 1], or None
            The borders of the packed tokens, as in `suffix_attention`.
        append : sequence of int
            How many tokens of each sequence, from its first in the pass on, this pass appends. More than the capacity
            or the pass has is refused before anything is written. Borders on a GPU are not read unless ``LSP_CHECK=1``:
            there, `attend` compares the appends with the number of tokens instead.
        slots : sequence of int, optional
            Which row of the cache each sequence has, all distinct; there may then be fewer sequences than rows. By
            default sequence b has row b.
        """
        rows = range(self.batch) if slots is None else self._rows("slots", slots)
        append = [as_integer(f"append[{b}]", n, 0) for b, n in enumerate(append)]
        if slots is not None and len(append) != len(rows):
            raise ValueError(f"Invalid slots: expected a row for each of {len(append)} sequences, got {len(rows)}")
        if len(append) != len(rows):
            raise ValueError(
                f"Invalid append: expected {len(rows)} lengths, one for each row (or slots), got {len(append)}"
            )
        if len(set(rows)) < len(rows):
            raise ValueError(f"Invalid slots: expected distinct rows, got {list(rows)}")
        for b, (row, new) in enumerate(zip(rows, append, strict=True)):
            if (held := self._lengths[row]) + new > self.capacity:
                raise ValueError(
                    f"Invalid append[{b}]: expected at most {self.capacity - held} "
                    f"(capacity {self.capacity}, {held} frozen), got {new}"
                )
        if cu_seqlens is not None:
            self._check_borders(cu_seqlens, append)
        self._pass = Pass(rows, append, self._tables.filled(cu_seqlens, rows, self._lengths, append, slots is not None))

    def _check_borders(self, cu_seqlens: Tensor, append: list[int]) -> None:
        check_index("cu_seqlens", cu_seqlens, len(append) + 1, self.lengths)
        if values_are_free(cu_seqlens):
            given = check_borders("cu_seqlens", cu_seqlens, int(cu_seqlens[-1]), from_zero=True)
            _check_appends(append, given)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
        """Attention and append of one layer in the pass that has begun, by one call of `suffix_attention`."""
        k_cache, v_cache, cu_seqlens, prefixes, appends, slots = self.operands(layer)
        begun = self._begun("attend")
        if cu_seqlens is None:
            _check_appends(begun.append, [q.size(1)] * len(begun.append))
        elif sum(begun.append) > q.size(0):
            raise ValueError(
                f"Invalid append: expected at most {q.size(0)} (the tokens of the pass) in all, got {begun.append}"
            )
        tables = k_cache, v_cache, cu_seqlens, prefixes, appends
        out: Tensor = suffix_attention(q, k, v, *tables, slots=slots, scale=scale, workspace=self.workspace)
        begun.written.add(layer)
        return out

    def operands(self, layer: int) -> tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor, Tensor | None]:
        """What `suffix_attention` takes after q, k and v in the pass that has begun, and the slots.

        For code that calls it itself, as compiled code does, and then `written`.
        """
        begun = self._begun("attend")
        if not 0 <= as_integer("layer", layer, 0) < self.n_layers:
            raise ValueError(f"Invalid layer: expected 0 to {self.n_layers - 1}, got {layer}")
        return self.k[layer], self.v[layer], *begun.tables

    def written(self, layer: int | None = None) -> None:
        """Notes that the pass has written this layer, by default all of them; `attend` does it by itself.

        `advance` asks for all layers. Call it after the replay of a captured pass, and wherever something else than
        `attend` writes.
        """
        self._begun("written").written |= set(range(self.n_layers) if layer is None else (layer,))

    def advance(self) -> None:
        """Ends the pass: from here on the tokens that it appended are frozen."""
        begun = self._begun("advance")
        if missing := sorted({*range(self.n_layers)} - begun.written):
            raise RuntimeError(
                f"Invalid call of advance: expected attend for all {self.n_layers} layers, got none for {missing}"
            )
        lengths = self._lengths.copy()
        for row, new in zip(begun.rows, begun.append, strict=True):
            lengths[row] += new
        self._set(lengths, set(begun.rows))

    @property
    def frozen(self) -> list[int]:
        """`lengths` on the host, known without a synchronisation."""
        return list(self._lengths)

    def _begun(self, name: str) -> Pass:
        if self._pass is None:
            raise RuntimeError(
                f"Invalid call of {name}: expected a pass that has begun, got none or one whose rows changed"
            )
        return self._pass

    def copy_row(self, source: int, target: int) -> None:
        """Gives row `target` the frozen prefix of row `source`: a prompt that sequences share is computed once."""
        (source,), (target,) = self._rows("source", [source]), self._rows("target", [target])
        if source == target:
            raise ValueError(f"Invalid target: expected another row than the source, got {target}")
        length = self._lengths[source]
        for layer in (*self.k, *self.v):
            layer[target, :, :length] = layer[source, :, :length]
        self._set([length if row == target else held for row, held in enumerate(self._lengths)], {target})

    def release(self, slot: int) -> None:
        """Empties a row, for the next sequence; what it held is never read again."""
        (slot,) = self._rows("slot", [slot])
        self.truncate({slot: 0})

    def refresh(self, sequences: Iterable[int] | None = None) -> None:
        """Empties these rows, by default all, so that the next pass recomputes all tokens of their sequences."""
        self.truncate(dict.fromkeys(range(self.batch) if sequences is None else sequences, 0))

    def truncate(self, lengths: dict[int, int]) -> None:
        """Shortens the prefix of each row b among the keys to ``lengths[b]``.

        A pass that has begun on one of these rows is over; a pass on others goes on. So with `release` and `copy_row`.
        """
        self._rows("sequences", lengths)
        for b, length in lengths.items():
            if not 0 <= as_integer(f"lengths[{b}]", length, 0) <= self._lengths[b]:
                raise ValueError(f"Invalid lengths[{b}]: expected 0 to {self._lengths[b]} (frozen), got {length}")
        self._set([lengths.get(b, held) for b, held in enumerate(self._lengths)], set(lengths))

    def _rows(self, name: str, rows: Iterable[int]) -> list[int]:
        if not isinstance(rows, Iterable):
            raise TypeError(f"Invalid {name}: expected integers, got {rows!r}")
        out = list(rows)
        for row in out:
            if isinstance(row, int) and not 0 <= row < self.batch:
                raise ValueError(f"Invalid {name}: expected 0 to {self.batch - 1}, got {row}")
        return [as_integer(name, row, 0) for row in out]

    def _set(self, lengths: list[int], changed: set[int]) -> None:
        """New lengths; a pass that has begun on a row that `changed` is over."""
        upload(lengths, self.lengths)
        self._lengths = lengths
        if self._pass is not None and changed & set(self._pass.rows):
            self._pass = None

    def __repr__(self) -> str:
        shape = ", ".join(f"{name}={getattr(self, name)}" for name in SHAPE)
        return f"PrefixCache({shape}, dtype={self.dtype}, {readable(self.nbytes)})"


def _check_appends(append: list[int], given: list[int]) -> None:
    """Raises if a sequence is to append more tokens than it has in the pass."""
    for b, (new, tokens) in enumerate(zip(append, given, strict=True)):
        if new > tokens:
            raise ValueError(f"Invalid append[{b}]: expected at most {tokens} (tokens in the pass), got {new}")
