"""The commit kernel in a decoding loop that is not ours: LLaDA's, with one call in the place of its softmax."""

import torch

from lsp_kernels import PrefixRule, Vocabulary, commit_prefix

SIZE, MASK, STOP, DELIMITERS = 500, 499, 0, range(0, 500, 7)
generator = torch.Generator().manual_seed(0)
table = torch.randn(SIZE, SIZE, generator=generator) * 4


def model(x: torch.Tensor) -> torch.Tensor:
    """Stands for yours: ids [B, L] to logits [B, L, V]. A token depends on the one before it."""
    return table[x.roll(1, dims=1)]


prompt = torch.randint(1, SIZE - 1, (2, 6), generator=generator)
x = torch.cat([prompt, torch.full((2, 32), MASK)], dim=1)
vocabulary = Vocabulary(SIZE, delimiters=DELIMITERS, stops=[STOP], suppress=[MASK])  # once

rule = PrefixRule(no_delimiter="keep")  # the paper's, but without a delimiter in the window the candidate is kept
passes = 0
first = torch.full((2,), 6)  # the first mask of each row
while bool((first < x.size(1)).any()):
    logits, passes = model(x), passes + 1
    left = (x.size(1) - first).int()
    commit = commit_prefix(logits, None, left, first.int(), rule=rule, vocabulary=vocabulary)
    for row, (start, length) in enumerate(zip(first.tolist(), commit.lengths.tolist(), strict=True)):
        x[row, start : start + length] = commit.tokens[row, start : start + length]
        ended = bool(commit.finished[row])
        if ended:
            x[row, start + length :] = STOP  # what follows a stop is not decoded
        first[row] = x.size(1) if ended else start + length

print(x[:, 6:].tolist(), f"in {passes} passes")
assert not bool((x == MASK).any())
assert passes < 32
