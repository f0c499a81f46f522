"""A real SGLang engine on this CPU, with a tiny random model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.sglang.checkpoint import save

BLOCK, FLOOR = 8, 0.5


@contextmanager
def engine(
    folder: Path,
    algorithm: str,
    *,
    checkpoint: Callable[[Path], object] = save,
    ranks: int = 1,
    fdfo: bool = True,
    **chosen: Any,
) -> Iterator[Any]:
    """An engine with this algorithm and settings, over as many processes; stopped at the end."""
    import sglang

    options = settings(folder, algorithm, checkpoint=checkpoint, ranks=ranks, fdfo=fdfo, **chosen)
    with pytest.MonkeyPatch.context() as patch:
        if ranks > 1:
            patch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "|".join(map(str, range(ranks))))  # a core for each process
        found = sglang.Engine(**options)
    try:
        yield found
    finally:
        found.shutdown()


def settings(
    folder: Path,
    algorithm: str,
    *,
    checkpoint: Callable[[Path], object] = save,
    ranks: int = 1,
    fdfo: bool = True,
    **chosen: Any,
) -> dict[str, Any]:
    """Options of SGLang for a tiny model, which is written into the folder, and for an algorithm with its settings."""
    config = folder / "algorithm.yaml"
    config.write_text(yaml.safe_dump({"block_size": BLOCK, "rule": {"floor": FLOOR}} | chosen), "utf-8")
    checkpoint(folder)
    return {
        "model_path": str(folder),
        "device": "cpu",
        "dtype": "float32",
        "attention_backend": "torch_native",
        "skip_tokenizer_init": True,
        "dllm_algorithm": algorithm,
        "dllm_algorithm_config": str(config),
        "dllm_fdfo": fdfo,
        "tp_size": ranks,
        "disable_radix_cache": True,
        "disable_cuda_graph": True,
        "max_running_requests": 8,
        "max_total_tokens": 2048,
        "mem_fraction_static": 0.1,
        "log_level": "warning",
    }


async def pieces(engine: Any, prompt: list[int], sampling: dict[str, Any], rid: str | None = None) -> list[list[int]]:
    """What a streaming client receives, one list of all tokens so far after the other."""
    stream = await engine.async_generate(input_ids=prompt, sampling_params=sampling, stream=True, rid=rid)
    return [list(piece["output_ids"]) async for piece in stream]


def together(engine: Any, *clients: Any) -> list[Any]:
    """The results of clients that run at the same time."""

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*clients)

    return engine.loop.run_until_complete(all_of_them())
