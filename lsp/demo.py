"""``make demo``: the selection rule on one step of a sentence, printed step by step."""

from __future__ import annotations

import torch

from lsp_kernels import PrefixRule, Vocabulary, commit_prefix

# What a model might say of the 15 masked positions that follow "Natalia has 4 friends and sold 8 clips to each."
# The margin of a word is its logit minus the next best.
WORDS = ["She", "sold", "8", "clips", ",", "so", "in", "all", "4", "*", "8", "=", "32", "clips", "."]
MARGINS = [6.1, 5.2, 5.9, 4.4, 5.0, 4.1, 3.0, 3.6, 2.9, 3.3, 3.1, 2.8, 2.4, 3.8, 4.0]
DELIMITERS = [".", ","]


def example() -> tuple[torch.Tensor, Vocabulary]:
    """Logits [15, V] with the margins above, and a vocabulary of the words and delimiters."""
    ids = {word: i for i, word in enumerate(dict.fromkeys([*WORDS, *DELIMITERS]))}
    logits = torch.zeros(len(WORDS), len(ids))
    for row, (word, margin) in enumerate(zip(WORDS, MARGINS, strict=True)):
        logits[row, ids[word]] = margin
    return logits, Vocabulary(len(ids), delimiters=[ids[word] for word in DELIMITERS])


def explain(rule: PrefixRule) -> list[str]:
    """The steps of the rule, as lines of text."""
    logits, vocabulary = example()
    commit = commit_prefix(logits, rule=rule, vocabulary=vocabulary)
    n, length = len(WORDS), int(commit.lengths)
    scored = rule.scored_rows(n)

    lengths = torch.arange(1, n + 1)
    margins = torch.where(lengths <= scored, commit.margins, torch.inf)
    candidate = int(rule.stable_length(margins[None], lengths, torch.tensor([n])))
    prefix_min = margins.cummin(0).values

    lines = ["   j  word       margin  prefix minimum"]
    for j, word in enumerate(WORDS, 1):
        marks = [name for name, at in (("L'", candidate), ("L", length)) if at == j]
        marks += ["delimiter"] if word in DELIMITERS else []
        seen = f"{MARGINS[j - 1]:6.1f}  {prefix_min[j - 1]:14.1f}" if j <= scored else " not read"
        lines.append(f"  {j:2}  {word:<9}  {seen}  {', '.join(marks)}".rstrip())
    lines += [
        f"  N = {n}: the candidate lies in [lo, hi] = [{rule.lowest(n)}, {rule.highest(n)}]; {scored} rows are read",
        f"  L' = {candidate}: the longest of these lengths that is followed by a new minimum",
        f"  L = {length}: snapped back to the last delimiter within {rule.window} tokens",
        f"  committed: {' '.join(WORDS[:length])}",
    ]
    return lines


def main() -> None:
    print("One step of the paper's rule, PrefixRule():")
    print("\n".join(explain(PrefixRule())))
    rule = PrefixRule.guarded()
    commit = commit_prefix(example()[0], rule=rule, vocabulary=example()[1])
    print(f"\nThe same step with a floor of {rule.floor}, PrefixRule.guarded():")
    print(f"  committed: {' '.join(WORDS[: int(commit.lengths)])}\n")


if __name__ == "__main__":
    main()
