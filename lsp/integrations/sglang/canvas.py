"""Full-attention LLaDA in SGLang: prompt and answer in one block, which is the canvas of the request.

SGLang knows by heart which models it can decode block by block. The hook adds LLaDA, with a block as long as the YAML
file says; what does not fit into one block is refused, because a second block would freeze the first.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["ARCHITECTURE", "install", "refusal"]

ARCHITECTURE = "LLaDAModelLM"


def install() -> None:
    """Registers the config of LLaDA with transformers, and the hook with SGLang."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    import lsp

    lsp.register()
    HookRegistry.register("sglang.srt.dllm.config.DllmConfig.from_server_args", around_config, HookType.AROUND)


def around_config(original: Callable[[Any], Any], server_args: Any) -> Any:
    """Around the choice of a block size and a mask by the architecture."""
    try:
        return original(server_args)
    except RuntimeError as error:
        if ARCHITECTURE not in str(error):
            raise
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.dllm.config import DllmConfig

    given = resolving_view(server_args)
    model = ModelConfig.from_server_args(server_args, model_path=given.model_path, model_revision=given.revision)
    settings = read_yaml(given.dllm_algorithm_config)
    if given.dllm_algorithm != "LongestStablePrefixCanvas":
        name = given.dllm_algorithm
        raise ValueError(f"Invalid --dllm-algorithm: expected LongestStablePrefixCanvas for LLaDA, got {name}")
    length = settings.get("block_size")
    if not isinstance(length, int) or isinstance(length, bool) or length < 1:
        raise ValueError(
            "Invalid --dllm-algorithm-config: expected a block_size, the length of a prompt and its answer together, "
            f"got {length!r}"
        )
    return DllmConfig(
        algorithm=given.dllm_algorithm,
        algorithm_config=settings,
        block_size=length,
        mask_id=model.hf_config.mask_token_id,
        max_running_requests=given.max_running_requests or 1,
        first_done_first_out_mode=given.dllm_fdfo,
    )


def read_yaml(path: str | None) -> dict[str, Any]:
    import yaml

    found = yaml.safe_load(Path(path).read_text("utf-8")) if path else {}
    if not isinstance(found, dict):
        raise ValueError(f"Invalid --dllm-algorithm-config: expected a mapping, got {found!r}")
    return found


def refusal(prompt: int, new: int | None, block: int) -> str | None:
    """Why a request cannot be served, in tokens of its prompt, its answer and the block; None if it can be."""
    if new is not None and prompt + new <= block:
        return None
    return f"Invalid max_new_tokens: expected at most {block - prompt} (block_size {block}, prompt {prompt}), got {new}"
