"""What the tasks share: a problem, the three splits, the limits of the numbers, what a token is."""

import hashlib
from dataclasses import dataclass, field
from typing import Any

MAX_NUMBER = 50
"""Every number of every problem is a single token from 0 to this."""

REGION = 96
"""Tokens an answer of most tasks may take; what it does not need is filled with end-of-sequence."""

REGIONS = {"traces": 432}
"""The same for the tasks that need more."""

PIECES = r"\n *| *#| ?[A-Za-z]+| \d+|\d| ?[-+*/%=<>]+|[().,:;?_]"
"""What the tokenizer splits texts by: every match is a token."""

TEMPLATES = (0, 1)
"""The wordings of a prompt. The answer does not depend on it."""

SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Problem:
    """One problem with one right answer; `key` decides the split it belongs to."""

    task: str
    level: int
    prompt: str
    answer: str
    key: str
    facts: dict[str, Any] = field(default_factory=dict)


def region(task: str) -> int:
    """Tokens an answer of this task may take."""
    return REGIONS.get(task, REGION)


def split_of(key: str) -> str:
    """The split of everything that shares `key`: 80 % train, 10 % dev, 10 % test."""
    bucket = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % 10
    return {0: "test", 1: "dev"}.get(bucket, "train")


def apply(operator: str, left: int, right: int) -> int | None:
    """`left operator right`, or None where a division leaves a remainder."""
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    if operator == "*":
        return left * right
    if operator == "/" and right and left % right == 0:
        return left // right
    return None
