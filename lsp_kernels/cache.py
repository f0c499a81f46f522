"""The contiguous, append-only K/V cache of the frozen prefixes of a batch."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ._checks import FLOATS
from .attention import suffix_attention
from .errors import as_integer, check_borders, check_index, values_are_free
from .workspace import Workspace

logger = logging.getLogger(__name__)

MEMINFO = Path("/proc/meminfo")
SHAPE = ("n_layers", "batch", "n_kv_heads", "capacity", "head_dim")


class PrefixCache:
    """K and V of the frozen prefix of every sequence, for every layer, in one contiguous block each.

    A pass is `begin`, then `attend` once per layer, then `advance`. Only `advance` makes the appended tokens part of
    the prefixes, so a pass that is interrupted leaves them as they were. It freezes nothing that was not written.

    Parameters
    ----------
    n_layers, batch, n_kv_heads, capacity, head_dim : int
        Each layer holds K and V of shape [batch, n_kv_heads, capacity, head_dim]. All of it is allocated at once;
        `bytes_needed` gives the size beforehand. head_dim is a multiple of 16 from 32 to 256.
    dtype : torch.dtype
        float32, bfloat16 or float16; float64 for checks by the reference.
    device : torch.device or str

    Attributes
    ----------
    lengths : Tensor, int32 [batch]
        How many tokens of each sequence are frozen, on the device.
    k, v : list of Tensor
        One per layer. Slots past `lengths` hold anything.

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
        if self.nbytes > (free := _free_bytes(self.device)):
            raise MemoryError(
                f"Invalid capacity: expected room for {self!r}, {self.nbytes} bytes, got {free} free on {self.device}"
            )
        logger.info("allocating %s on %s for %r", _readable(self.nbytes), self.device, self)
        self.k, self.v = self._allocate(), self._allocate()
        self.lengths = torch.zeros(batch, dtype=torch.int32, device=self.device)
        self.workspace = Workspace()
        self._lengths = [0] * batch  # `lengths` on the host, to be read without a synchronisation
        self._append: list[int] | None = None  # how much the pass that has begun appends to each sequence
        self._pass: tuple[Tensor | None, Tensor] | None = None  # borders of that pass, and `_append` on the device
        self._written: set[int] = set()  # layers that this pass has written

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

    def begin(self, cu_seqlens: Tensor | None, append: Sequence[int]) -> None:
        """Starts a pass.

        Parameters
        ----------
        cu_seqlens : Tensor, int32 [batch + 1], or None
            The borders of the packed tokens, as in `suffix_attention`.
        append : sequence of int
            How many tokens of each sequence, from its first in the pass on, this pass appends. More than the capacity
            or the pass has is refused before anything is written. Borders on a GPU are not read unless ``LSP_CHECK=1``:
            there, `attend` compares the appends with the number of tokens instead.
        """
        append = [as_integer(f"append[{b}]", n, 0) for b, n in enumerate(append)]
        if len(append) != self.batch:
            raise ValueError(f"Invalid append: expected {self.batch} lengths, got {len(append)}")
        for b, (held, new) in enumerate(zip(self._lengths, append, strict=True)):
            if held + new > self.capacity:
                raise ValueError(
                    f"Invalid append[{b}]: expected at most {self.capacity - held} "
                    f"(capacity {self.capacity}, {held} frozen), got {new}"
                )
        if cu_seqlens is not None:
            self._check_borders(cu_seqlens, append)
        self._append, self._written = append, set()
        self._pass = cu_seqlens, self._upload(append)

    def _check_borders(self, cu_seqlens: Tensor, append: list[int]) -> None:
        check_index("cu_seqlens", cu_seqlens, self.batch + 1, self.lengths)
        if values_are_free(cu_seqlens):
            given = check_borders("cu_seqlens", cu_seqlens, int(cu_seqlens[-1]), from_zero=True)
            _check_appends(append, given)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
        """Attention and append of one layer in the pass that has begun, by one call of `suffix_attention`."""
        if self._pass is None:
            raise RuntimeError("Invalid call of attend: expected a pass that has begun, got none; call begin")
        if not 0 <= as_integer("layer", layer, 0) < self.n_layers:
            raise ValueError(f"Invalid layer: expected 0 to {self.n_layers - 1}, got {layer}")
        cu_seqlens, append = self._pass
        if cu_seqlens is None:
            _check_appends(self._append or [], [q.size(1)] * self.batch)
        elif sum(self._append or []) > q.size(0):
            raise ValueError(
                f"Invalid append: expected at most {q.size(0)} (the tokens of the pass) in all, got {self._append}"
            )
        out: Tensor = suffix_attention(
            q,
            k,
            v,
            self.k[layer],
            self.v[layer],
            cu_seqlens,
            self.lengths,
            append,
            scale=scale,
            workspace=self.workspace,
        )
        self.written(layer)
        return out

    def written(self, layer: int) -> None:
        """Notes that the pass has written this layer; `attend` does. `advance` asks for all of them."""
        self._written.add(layer)

    def advance(self) -> None:
        """Ends the pass: from here on the tokens that it appended are frozen."""
        if self._pass is None or self._append is None:
            raise RuntimeError("Invalid call of advance: expected a pass that has begun, got none; call begin")
        if missing := sorted({*range(self.n_layers)} - self._written):
            raise RuntimeError(
                f"Invalid call of advance: expected attend for all {self.n_layers} layers, got none for {missing}"
            )
        self._set([held + new for held, new in zip(self._lengths, self._append, strict=True)])

    def refresh(self, sequences: Iterable[int] | None = None) -> None:
        """Empties the prefixes of these sequences, by default of all, so the next pass recomputes all their tokens."""
        chosen = range(self.batch) if sequences is None else self._indices(sequences)
        self.truncate({b: 0 for b in chosen})

    def truncate(self, lengths: dict[int, int]) -> None:
        """Shortens the prefix of each sequence b among the keys to ``lengths[b]``."""
        self._indices(lengths)
        for b, length in lengths.items():
            if not 0 <= as_integer(f"lengths[{b}]", length, 0) <= self._lengths[b]:
                raise ValueError(f"Invalid lengths[{b}]: expected 0 to {self._lengths[b]} (frozen), got {length}")
        self._set([lengths.get(b, held) for b, held in enumerate(self._lengths)])

    def _indices(self, sequences: Iterable[int]) -> list[int]:
        out = [as_integer("sequences", b, 0) for b in sequences]
        if out and max(out) >= self.batch:
            raise ValueError(f"Invalid sequences: expected 0 to {self.batch - 1}, got {max(out)}")
        return out

    def _set(self, lengths: list[int]) -> None:
        self.lengths.copy_(self._upload(lengths), non_blocking=True)  # in place: a captured graph keeps its address
        self._lengths, self._append, self._pass = lengths, None, None

    def _upload(self, values: list[int]) -> Tensor:
        out = torch.tensor(values, dtype=torch.int32, pin_memory=self.device.type == "cuda")
        return out.to(self.device, non_blocking=True)

    def __repr__(self) -> str:
        shape = ", ".join(f"{name}={getattr(self, name)}" for name in SHAPE)
        return f"PrefixCache({shape}, dtype={self.dtype}, {_readable(self.nbytes)})"


def _check_appends(append: list[int], given: list[int]) -> None:
    """Raises if a sequence is to append more tokens than it has in the pass."""
    for b, (new, tokens) in enumerate(zip(append, given, strict=True)):
        if new > tokens:
            raise ValueError(f"Invalid append[{b}]: expected at most {tokens} (tokens in the pass), got {new}")


def _free_bytes(device: torch.device) -> float:
    """The free memory of a device in bytes; infinity where it is not known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "cpu" and MEMINFO.exists():
        free = [line.split() for line in MEMINFO.read_text().splitlines() if line.startswith("MemAvailable")]
        return int(free[0][1]) * 1024 if free else math.inf
    return math.inf


def _readable(size: int) -> str:
    value, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.1f} {units[0]}"
