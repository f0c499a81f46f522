"""The sentences of docs/roofline.md."""

from __future__ import annotations

HEAD = """\
# Roofline: computed, never measured

**Nothing on this page was measured.** These are the *least* times that four GPUs can take for what must be moved and
multiplied. Real kernels take longer, by a factor that nobody knows until `make bench-gpu` has run on such a GPU.
`python -m bench.roofline` writes this page; a test fails when it is not what the command writes.

## What is assumed

Peak rates as published by the makers, for dense products of bfloat16; a launch takes the host {launch:.0f} us unless
it is part of a CUDA graph.
"""

FORMULAS = """
A kernel takes the longer of (bytes read + bytes written) / memory rate and products / tensor-core rate. Kernels run
one after the other, so the times of a pass are added up. If the host needs longer to launch them all, the pass takes
that long, and is *bound by launches*.

What is counted, in elements of 2 bytes unless said otherwise. *Bytes* are operands and results, each once. *Loads*
are what the programs of our kernel ask for on an H100, repeats and shared sums included. The L2 cache can serve the
difference; its rate is not modelled.

- `commit_prefix`, R scored rows of V ids: reads R V, writes 16 bytes per row (token, margin, largest logit). A row
  that s programs share costs 12 s bytes of loads and stores more.
- `linear_commit_prefix`, hidden size d: reads V d + R d. Every tile of rows loads all weights, and its rows once for
  each tile of ids. Products: 2 d for each row and id of a tile, padding included. No logits exist.
- `suffix_attention`, prefix P, n new tokens, H query heads, K heads of K/V, head size D: reads 2 K (P + n) D + H n D,
  writes H n D and what is appended. Every tile of rows (a row is one query head of one token) loads all keys and
  values of its sequence. Products: 4 D for each row and key of the tiles.
- Everything else, rivals included, runs on tensors without memory and is counted function by function: operands and
  results once each, 2 m n k products for a product of matrices. Kernels that read their operands twice, as a softmax
  over long rows does, take longer than that.

The tiles are those that a launch on that GPU would choose. `tests/bench/test_roofline.py` executes compiled kernels
on a virtual GPU and compares loads, stores and tensor-core products with these formulas: on sm_80 only. On sm_90 and
gfx942 one number was compared, the tensor-core instructions of an attention kernel; on sm_100 nothing was.
"""

KERNELS = """\
## Kernels

bfloat16. *Bytes* are read and written, *loads* are read alone. Times in microseconds, without launches; m: bound by
memory, t: by tensor cores.
"""

PASS = """\
## A pass of LLaDA-8B

32 layers and the head, bfloat16, {suffix} masks after {prefix} frozen tokens in each sequence; every mask is scored,
and nothing is appended. The *usual* pass has the same cache, but concatenates keys for SDPA, writes logits and takes
their softmax in float64; the *uncached* one computes all tokens in every pass, as LLaDA's own loop does. Times in
milliseconds, with what bounds them; in brackets the same in a CUDA graph, without the launches of the host.
"""
