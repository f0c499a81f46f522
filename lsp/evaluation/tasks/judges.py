"""Which answers to the public tasks are right. Programs are only cut out here, never run."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from lsp.evaluation.problems import same_number

Doc = dict[str, Any]

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
LONGEST_EXPRESSION = 200


def gsm8k(doc: Doc, results: Sequence[str]) -> dict[str, float]:
    """Whether the last number of the answer is the last one of the solution."""
    return {"acc": float(same_number(results[0], doc["answer"]))}


def answered(doc: Doc, results: Sequence[str]) -> dict[str, float]:
    """Whether there is an answer at all: programs are not judged by this."""
    return {"answered": float(bool(results[0].strip()))}


# Sudoku


def as_grids(dataset: Any) -> Any:
    """Puzzles as texts of 16 digits: columns of CSV are read as numbers, which do not begin with 0."""
    return dataset.map(lambda doc: {name.lower(): str(doc[name]).zfill(16) for name in ("Puzzle", "Solution")})


def sudoku(doc: Doc, results: Sequence[str]) -> dict[str, float]:
    """Whether the last 16 digits are a solved grid of the puzzle, and the share of empty cells that are right.

    Digits may be in groups. An answer without 16 digits from 1 to 4 side by side has no right cell.
    """
    puzzle, solution = doc["puzzle"], doc["solution"]
    grids = re.findall(r"(?<!\d)[1-4]{16}(?!\d)", re.sub(r"(?<=[1-4])[\s|,]+(?=[1-4])", "", results[0]))
    grid = grids[-1] if grids else "0" * 16
    empty = [i for i, cell in enumerate(puzzle) if cell == "0"]
    kept = all(a in ("0", b) for a, b in zip(puzzle, grid, strict=True))
    cells = sum(grid[i] == solution[i] for i in empty) / max(len(empty), 1)
    return {"acc": float(kept and is_solved(grid)), "cells": cells}


def is_solved(grid: str) -> bool:
    """Whether rows, columns and boxes of 16 cells hold 1 to 4 once each."""
    rows = [grid[i : i + 4] for i in range(0, 16, 4)]
    columns = [grid[i::4] for i in range(4)]
    boxes = [grid[i : i + 2] + grid[i + 4 : i + 6] for i in (0, 2, 8, 10)]
    return all(sorted(unit) == ["1", "2", "3", "4"] for unit in rows + columns + boxes)


# Countdown


def countdown(doc: Doc, results: Sequence[str]) -> dict[str, float]:
    """Whether the expression in the last box, else on the last line, uses the numbers once and makes the target."""
    expression = _expression(results[0])
    numbers = sorted(map(int, doc["input"].split(",")))
    used = sorted(map(int, re.findall(r"\d+", expression)))
    return {"acc": float(used == numbers and value_of(expression) == int(doc["output"]))}


def _expression(text: str) -> str:
    boxes = re.findall(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}", text)
    found: str = boxes[-1] if boxes else (text.strip().splitlines() or [""])[-1]
    for written, sign in ((r"\times", "*"), (r"\cdot", "*"), (r"\div", "/"), ("×", "*"), ("÷", "/"), ("−", "-")):
        found = found.replace(written, sign)
    return found.partition("=")[0].strip()


def value_of(expression: str) -> Fraction | None:
    """The exact value of an expression of whole numbers, + - * / and brackets; None if it is anything else."""
    if len(expression) > LONGEST_EXPRESSION:
        return None
    try:
        return _value(ast.parse(expression, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return Fraction(node.value)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        out: Fraction = OPERATORS[type(node.op)](_value(node.left), _value(node.right))
        return out
    raise ValueError(f"expected numbers and + - * /, got {ast.dump(node)}")


# Programs


def code_of(text: str) -> str:
    """The first block of code of an answer, without its fences; the whole answer if there is none."""
    block = re.search(r"```(?:\w+)?\n(.*?)(?:\n?```|$)", text, re.DOTALL)
    return block[1] if block else text


def humaneval_programs(answers: Sequence[Sequence[str]], docs: Sequence[Doc]) -> list[list[str]]:
    """What is run: the question's imports and header, then the function, or its body where the answer is only that."""
    return [[_whole(doc, code_of(text)) for text in texts] for texts, doc in zip(answers, docs, strict=True)]


def _whole(doc: Doc, code: str) -> str:
    defines = re.search(rf"^def {re.escape(doc['entry_point'])}\b", code, re.MULTILINE)
    return f"{doc['prompt']}\n{code}" if defines else f"{doc['prompt']}{code}"


def mbpp_programs(answers: Sequence[Sequence[str]], docs: Sequence[Doc]) -> list[list[str]]:
    return [[code_of(text) for text in texts] for texts in answers]
