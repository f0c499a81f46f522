"""Tiles and launch options of the kernels, per family and architecture. Nothing is tuned at run time.

Grids, tiles and splits follow from shapes and from the device's number of processors alone, so a launch needs no
synchronisation and can be captured in a CUDA graph. Nothing here imports Triton.
"""

from . import attention, block, commit, device, head

__all__ = ["attention", "block", "commit", "device", "head"]
