"""The models as transformers knows models: Auto classes, `from_pretrained`, tokenizers. Imports transformers.

Weights are always read by `lsp.load`, so what transformers would do with a checkpoint plays no part. Code that comes
with a checkpoint, or that it names, is never run: the classes are those of this file and fixed ones of transformers,
whatever class the folder asks for, and nobody is asked on stdin.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.modeling_outputs import MaskedLMOutput

from lsp.models import checkpoint
from lsp.models.hub import find
from lsp.models.loading import SHARD_SIZE, load_folder, read_config, save_pretrained
from lsp.models.transformer import Transformer
from lsp_kernels import PrefixCache

HUB = ("revision", "cache_dir", "token", "local_files_only")
# What callers and Auto classes pass along and what changes nothing here.
IGNORED = {"_from_auto", "_commit_hash", "adapter_kwargs", "attn_implementation", "code_revision", "low_cpu_mem_usage"}
IGNORED |= {"trust_remote_code", "use_safetensors", "weights_only"}
DTYPE_KEYS = ("dtype", "torch_dtype")
NAMES_OF_CODE = {"auto_map", "custom_pipelines"}
NAMES_OF_CODE |= {f"{prefix}{part}_implementation" for prefix in ("", "_") for part in ("attn", "experts")}
"""Keys of a config.json that name code: files of its folder or of another repository, or kernels on the hub."""


class PublicConfig(transformers.PretrainedConfig):
    """A public config, key by key, but for the keys that name code: no Auto class finds any to run."""

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **options: Any) -> Any:
        public, options = ({k: v for k, v in each.items() if k not in NAMES_OF_CODE} for each in (config_dict, options))
        return super().from_dict(public, **options)


class LladaConfig(PublicConfig):
    """The public config of LLaDA, key by key."""

    model_type = "llada"
    attribute_map = {  # noqa: RUF012 - as transformers has it
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "num_key_value_heads": "n_kv_heads",
        "intermediate_size": "mlp_hidden_size",
        "max_position_embeddings": "max_sequence_length",
    }


class DreamConfig(PublicConfig):
    """The public config of Dream, key by key."""

    model_type = "Dream"


class A2dQwen2Config(PublicConfig, transformers.Qwen2Config):
    """The public config of the dllm project's masked Qwen2, key by key."""

    model_type = "a2d-qwen2"


class A2dQwen3Config(PublicConfig, transformers.Qwen3Config):
    """The public config of the dllm project's masked Qwen3, key by key."""

    model_type = "a2d-qwen3"


class A2dLlamaConfig(PublicConfig, transformers.LlamaConfig):
    """The public config of the dllm project's masked Llama, key by key."""

    model_type = "a2d-llama"


class PackedModel(transformers.PreTrainedModel, transformers.GenerationMixin):
    """A `Transformer` that takes padded batches and returns logits, for code written for transformers. Inference only.

    Decoding needs the `transformer` itself: `lsp.adapt` finds it, and so does ``model.generate`` with the function of
    `lsp.integrations.transformers`.
    """

    config_class: Any
    base_model_prefix = "transformer"
    main_input_name = "input_ids"

    def __init__(self, config: Any, transformer: Transformer | None = None) -> None:
        model = Transformer(read_config(config.to_dict())) if transformer is None else transformer
        config.tie_word_embeddings = model.config.tied
        config._attn_implementation = "eager"  # attention is ours: transformers has no kernel to look for
        super().__init__(config)
        self.transformer = model
        self.post_init()

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | os.PathLike[str], *, config: Any = None, **options: Any
    ) -> PackedModel:
        """As in transformers, with the loader of `lsp.load`. Weights keep the dtype of the checkpoint by default."""
        given = [options.pop(key) for key in DTYPE_KEYS if options.get(key) is not None]
        device = _device(options.pop("device_map", None))
        hub = {key: options.pop(key) for key in HUB if key in options}
        if unknown := sorted(key for key in options if key not in IGNORED and options[key]):
            raise TypeError(f"Invalid argument {unknown[0]}: expected dtype, device_map, config, {', '.join(HUB)}")
        folder = find(pretrained_model_name_or_path, **hub)
        public = checkpoint.read_json(folder / checkpoint.CONFIG)
        config = cls.config_class.from_pretrained(folder) if config is None else config
        # The keys of the file with the values of the object: a caller may have changed them.
        public |= {key: vars(config).get(key, value) for key, value in public.items() if key not in DTYPE_KEYS}
        model = cls(config, load_folder(folder, public, given[0] if given else None, device))
        model.eval()
        return model

    def save_pretrained(
        self,
        save_directory: str | os.PathLike[str],
        is_main_process: bool = True,
        *,
        max_shard_size: int | str = SHARD_SIZE,
        safe_serialization: bool = True,
    ) -> None:
        """Writes the public format, as `lsp.save_pretrained` does."""
        if not safe_serialization:
            raise ValueError("Invalid safe_serialization: expected True, as pickles are not written, got False")
        if is_main_process:
            save_pretrained(self.transformer, save_directory, max_shard_size=max_shard_size)

    @torch.no_grad()
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        *,
        return_dict: bool = True,
        use_cache: bool = False,
    ) -> Any:
        """Logits [B, L, V] of a batch [B, L]; `attention_mask` [B, L] is 0 on padding, whose logits are 0.

        With a `lsp.integrations.transformers.SuffixCache` the batch is what is not frozen yet, and has no padding.
        """
        if past_key_values is not None:
            logits = self._suffix(input_ids, attention_mask, position_ids, past_key_values)
            return MaskedLMOutput(logits=logits) if return_dict else (logits,)
        real = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        if input_ids.dim() != 2 or real.shape != input_ids.shape:
            shapes = f"{list(input_ids.shape)} and {list(real.shape)}"
            raise ValueError(f"Invalid shape of input_ids and attention_mask: expected [B, L] both, got {shapes}")
        borders = torch.nn.functional.pad(real.sum(1).cumsum(0), (1, 0)).int()
        positions = self._positions(input_ids, position_ids, 0)
        logits = self.transformer.lm_head(self.transformer(input_ids[real], positions[real], borders))
        out = logits.new_zeros(*input_ids.shape, logits.size(-1))
        out[real] = logits
        return MaskedLMOutput(logits=out) if return_dict else (out,)

    def _suffix(self, input_ids: Tensor, mask: Tensor | None, position_ids: Tensor | None, cache: Any) -> Tensor:
        """Logits of the tokens of a pass that has begun."""
        if not isinstance(getattr(cache, "prefix", None), PrefixCache):
            raise TypeError(f"Invalid past_key_values: expected a SuffixCache, got a {type(cache).__name__}")
        if mask is not None and not bool(mask.all()):
            raise ValueError("Invalid attention_mask: expected no padding with past_key_values, got zeros")
        positions = self._positions(input_ids, position_ids, cache.get_seq_length())
        hidden = self.transformer.run_layers(input_ids.flatten(), positions.flatten(), Rows(cache, input_ids.shape))
        logits: Tensor = self.transformer.lm_head(hidden)
        return logits.view(*input_ids.shape, -1)

    def _positions(self, input_ids: Tensor, given: Tensor | None, first: int) -> Tensor:
        places = torch.arange(first, first + input_ids.size(1), device=input_ids.device) if given is None else given
        return places.expand_as(input_ids)

    def get_input_embeddings(self) -> nn.Module:
        return self.transformer.embedding

    def get_output_embeddings(self) -> nn.Module:
        return self.transformer.lm_head

    def _init_weights(self, module: nn.Module) -> None:
        """Weights are loaded, or left as torch made them."""


class Rows:
    """What a pass of `Transformer` asks of a cache, for tokens that come in rows [B, N]."""

    def __init__(self, cache: Any, shape: torch.Size) -> None:
        self.layers, self.shape = cache.layers, shape

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (states.unflatten(0, self.shape) for states in (q, k, v))
        out: Tensor = self.layers[layer].attend(q, k, v, scale=None)
        return out.flatten(0, 1)


class LladaModel(PackedModel):
    config_class = LladaConfig


class DreamModel(PackedModel):
    config_class = DreamConfig


class A2dQwen2Model(PackedModel):
    config_class = A2dQwen2Config


class A2dQwen3Model(PackedModel):
    config_class = A2dQwen3Config


class A2dLlamaModel(PackedModel):
    config_class = A2dLlamaConfig


class LladaTokenizer(transformers.PreTrainedTokenizerFast):
    """LLaDA's tokenizer.json as it is."""


class DreamTokenizer(transformers.Qwen2TokenizerFast):
    """Dream's tokenizer is Qwen's with other special tokens; its checkpoints name this class."""


REGISTERED = (
    (LladaConfig, LladaModel, LladaTokenizer),
    (DreamConfig, DreamModel, DreamTokenizer),
    (A2dQwen2Config, A2dQwen2Model, transformers.Qwen2TokenizerFast),
    (A2dQwen3Config, A2dQwen3Model, transformers.Qwen2TokenizerFast),
    (A2dLlamaConfig, A2dLlamaModel, transformers.PreTrainedTokenizerFast),
)
"""Plain ``qwen2``, ``qwen3`` and ``llama`` belong to transformers: its Auto classes keep giving its own models."""


def register() -> None:
    """See `lsp.register`."""
    for config, model, tokens in REGISTERED:
        transformers.AutoConfig.register(config.model_type, config, exist_ok=True)
        for auto in (transformers.AutoModel, transformers.AutoModelForCausalLM, transformers.AutoModelForMaskedLM):
            auto.register(config, model, exist_ok=True)
        # Without a tokenizer of its own, a folder that brings one along would make transformers ask whether to run it.
        transformers.AutoTokenizer.register(config, fast_tokenizer_class=tokens, exist_ok=True)


def tokenizer(folder: Path, **options: Any) -> Any:
    """The tokenizer of a folder: tokenizer.json or a sentencepiece model as it is, or Dream's two files.

    Never by `AutoTokenizer`: it takes the class that the folder names, and offers to run the folder's code.
    """
    kind = transformers.PreTrainedTokenizerFast
    if not (folder / "tokenizer.json").is_file():
        if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
            kind = DreamTokenizer
        elif not any(folder.glob("*.model")):
            expected = "tokenizer.json, vocab.json with merges.txt, or a .model file"
            raise FileNotFoundError(f"Invalid tokenizer in {folder}: expected {expected}, got none of them")
    try:
        return kind.from_pretrained(folder, **options | {"trust_remote_code": False})
    except Exception as error:  # whatever transformers makes of damaged files
        got = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"Invalid tokenizer in {folder}: expected files that transformers can read, got {got}"
        ) from error


def _device(device_map: Any) -> torch.device | str:
    """One device: models are not split."""
    if isinstance(device_map, dict):
        if set(device_map) != {""}:
            raise ValueError(f"Invalid device_map: expected one device, got {device_map}")
        device_map = device_map[""]
    if device_map in (None, "auto", "balanced", "sequential"):
        on_gpu = device_map is not None and torch.cuda.is_available()
        return "cuda" if on_gpu else "cpu"
    return torch.device("cuda", device_map) if isinstance(device_map, int) else torch.device(device_map)
