"""Start a run from a checkpoint whose vocabulary may be smaller."""

from pathlib import Path

import torch
from tokenizers import Tokenizer

from lsp.tiny.training import tokenizer as tokens
from lsp.tiny.training.model import TinyModel


def start_from(model: TinyModel, tokenizer: Tokenizer, folder: Path) -> None:
    """Give `model` the weights in `folder`; embeddings and head rows are found by the text of their token.

    Tokens that the checkpoint does not know keep their random embedding, as large as the others.
    """
    old, vocabulary = TinyModel.load(folder), tokens.load(folder).get_vocab()
    shape = ("d_model", "n_layers", "n_heads", "mlp_hidden_size")
    wanted, found = ([getattr(m.config, name) for name in shape] for m in (model, old))
    if wanted != found:
        raise ValueError(f"Invalid start: expected {dict(zip(shape, wanted, strict=True))}, got {found} in {folder}")
    known = [(new, vocabulary[token]) for token, new in tokenizer.get_vocab().items() if token in vocabulary]
    new_rows, old_rows = (torch.tensor(rows) for rows in zip(*known, strict=True))
    weights = old.state_dict()
    with torch.no_grad():
        model.wte.weight *= old.wte.weight.std() / model.wte.weight.std()
        for name in ("wte.weight", "ff_out.weight"):
            model.get_parameter(name)[new_rows] = weights.pop(name)[old_rows]
    model.load_state_dict(weights, strict=False)
