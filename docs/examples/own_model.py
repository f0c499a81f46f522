"""Decode with a model of your own: anything from token ids [1, L] to logits [1, L, V], uncached."""

import torch

import lsp

SIZE, MASK, STOP = 32, 31, 30


class Counting(torch.nn.Module):
    """Predicts the number after the one before it; surer of positions near a known token."""

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        known = input_ids != MASK
        last = torch.where(known, torch.arange(input_ids.size(1)), -1).cummax(1).values  # the nearest known on the left
        distance = torch.arange(input_ids.size(1)) - last
        tokens = (input_ids.gather(1, last) + distance).clamp(max=STOP)
        return torch.nn.functional.one_hot(tokens, SIZE).float() * (8.0 / distance.clamp(min=1))[..., None]


model = lsp.adapt(Counting(), vocab_size=SIZE, mask_id=MASK, stop_ids=[STOP])
(answer,) = lsp.generate(model, [5, 6, 7], max_new_tokens=40)
print(answer.tokens, f"in {answer.passes} passes")
assert answer.tokens == list(range(8, STOP + 1))
assert answer.finished
