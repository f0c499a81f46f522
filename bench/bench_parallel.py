"""Tensor parallel: what a rank needs in memory to load its share."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

import lsp
from bench.memory import MEASURABLE, peaks_of_ranks
from bench.ratios import Report
from bench.sizes import sized
from bench.support import random_model

LARGE = sized((126464, 1024, 20, 8, 3072), tiny=(1000, 64, 2, 2, 96))  # vocabulary, width, layers, heads, MLP
RANKS = sized((2, 4), tiny=(2,))

SETUP = """
import torch
import lsp
from torch import distributed as dist

lsp.load("tiny")  # so that the libraries are in memory already
dist.init_process_group("gloo")
"""
CODE = """
model = lsp.load(sys.argv[1], tensor_parallel=True)
assert torch.isfinite(model.lm_head.weight[-1]).all()
print(sum(parameter.nbytes for parameter in model.parameters()))
"""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@pytest.mark.skipif(not MEASURABLE, reason="no /proc")
def bench_load_of_a_rank(benchmark, report: Report, tmp_path: Path) -> None:
    """Peak of each of several processes that load 1 GB together, as a share of all weights."""
    model = random_model(*LARGE).bfloat16()
    lsp.save_pretrained(model, tmp_path)
    whole = sum(parameter.nbytes for parameter in model.parameters())
    del model
    title = f"loading {whole / 1e9:.2f} GB in bfloat16 by several ranks: memory of each as a share of the weights"
    for size in RANKS:
        found = peaks_of_ranks(size, free_port(), SETUP, CODE, str(tmp_path))
        cells = {
            "weights held": " ".join(f"{int(held) / whole:.3f}" for _, (held,) in found),
            "peak of each": " ".join(f"{peak / whole:.3f}" for peak, _ in found),
        }
        sizes = {"all weights": float(whole), "peak of a rank": float(max(peak for peak, _ in found))}
        how = {"over": "all weights", "ours": ["peak of a rank"], "unit": "bytes", "cells": cells}
        report.compare(title, f"{size} ranks", sizes, **how)
        share = sizes["peak of a rank"] / whole
        report.target(f"peak of a rank of {size} / weights", share, at_most=1 / size + 0.05)
    benchmark.pedantic(lsp.load, args=(tmp_path,), rounds=1)
