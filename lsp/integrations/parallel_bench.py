"""A model class for ParallelBench, which decodes on the prefix cache with any scheduler of `lsp`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

import lsp
from lsp.cli import settings
from lsp.generation import Generation
from lsp.models import Transformer, load_tokenizer
from lsp.prompts import encode
from lsp_kernels.errors import as_integer

__all__ = ["LspModel"]


class LspModel:
    """What ParallelBench calls a model: it is loaded by name, and generates one answer at a time.

    Parameters
    ----------
    model_name : str
        As in `lsp.load`: a folder or a name on the hub.
    accel_framework : str, optional
        ParallelBench passes ``"lsp"`` here; it plays no part.
    device, dtype
        As in `lsp.load`. By default a GPU if there is one.
    """

    num_workers = 0  # ParallelBench asks for it

    def __init__(
        self,
        model_name: str,
        accel_framework: str | None = None,
        *,
        device: str | None = None,
        dtype: str | None = None,
    ) -> None:
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.model: Transformer = lsp.load(model_name, device=device, dtype=dtype)
        self.tokenizer = load_tokenizer(self.model)
        self.mask_id = as_integer("mask_id of the model", self.model.config.mask_id, 0)
        self.accel_framework = accel_framework

    def generate(
        self,
        messages: str | Sequence[dict[str, str]],
        output_prefix: str | None = None,
        gen_config: Mapping[str, Any] | None = None,
        output_history: bool = False,
    ) -> Any:
        """Answers one prompt; returns ParallelBench's `DLLMOutput`.

        `gen_config` has ``max_tokens`` (128 by default), ``scheduler`` (a name of `lsp.schedulers.NAMES`), ``set`` (its
        parameters, each as ``name=value``) and any option of the loop, such as ``block_length``. `output_prefix` must
        be None: parts of the answer cannot be given.
        """
        if output_prefix is not None:
            raise ValueError(f"Invalid output_prefix: expected None, as answers begin empty, got {output_prefix!r}")
        config = dict(gen_config or {})
        scheduler = settings.scheduler(config.pop("scheduler", None), config.pop("set", ()))
        length = config.pop("max_tokens", 128)
        prompt = encode(messages, self.tokenizer)
        (answer,) = lsp.generate(
            self.model, [prompt], max_new_tokens=length, scheduler=scheduler, tokenizer=self.tokenizer, **config
        )
        return self._output(prompt, answer, output_history)

    def _output(self, prompt: list[int], answer: Generation, output_history: bool) -> Any:
        """With the passes counted as NFE, and ParallelBench's own measures of the order of decoding."""
        output = import_module("model.base_model").DLLMOutput
        found: dict[str, Any] = {}
        if output_history:
            utils = import_module("model.model_utils")
            tokenizer = _Ids(self.tokenizer, self.mask_id)
            history = history_of(answer, self.mask_id)
            found["history"] = utils.decode_history(tokenizer, history)
            order = utils.compute_decoding_order_correlation_from_history(tokenizer, history)
            found["decoding_order"], found["decoding_order_corrs"] = order
        return output(
            output=answer.text,
            nfe=answer.passes,
            input_ids=torch.tensor([prompt]),
            output_ids=torch.tensor([answer.tokens], dtype=torch.int64),
            pad_token_id=self.tokenizer.pad_token_id,
            **found,
        )


def history_of(answer: Generation, mask_id: int) -> list[Tensor]:
    """The answer after each pass, int64 [1, L], with masks for what was committed later."""
    tokens, committed_in = torch.tensor([answer.tokens]), torch.tensor([answer.committed_in])
    return [torch.where(committed_in <= number, tokens, mask_id) for number in range(answer.passes)]


class _Ids:
    """A tokenizer that knows the mask of the model, whether or not it has a token for it."""

    def __init__(self, tokenizer: Any, mask_token_id: int) -> None:
        self._tokenizer, self.mask_token_id = tokenizer, mask_token_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)
