"""What the server holds: one model, its tokenizer, and the line of those who want to use it. It keeps no runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any

import lsp
from lsp.play.line import Line
from lsp.tiny import known_tasks
from lsp.tiny.tasks import REGION, Problem, generate, region
from lsp_kernels import Vocabulary

USUAL_LENGTH = 128
PROBLEMS = 200
"""How many problems of each task the page offers."""


@dataclass(eq=False)
class Playground:
    """A model to play with.

    Attributes
    ----------
    model, tokenizer
        As `lsp.load` and `lsp.load_tokenizer` give them.
    name : str
        What the page and ``/v1/models`` call it.
    chat : bool
        Whether prompts go through the chat template unless a request says otherwise.
    embedded : bool
        Whether it is the embedded model, which knows the tasks that can be judged.
    """

    model: Any
    tokenizer: Any
    name: str = "tiny"
    chat: bool = True
    embedded: bool = True
    line: Line = field(default_factory=Line)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return lsp.tokens.vocabulary(self.tokenizer, self.model.config, device=self.model.device)

    def warm_up(self) -> None:
        """Does now what would make the first run slow: the template's process starts, and the model runs once."""
        lsp.generate(self.model, [self.inputs("Hello", self.chat)], max_new_tokens=1, **self.given)

    @property
    def given(self) -> dict[str, Any]:
        """What every call of `lsp.generate` gets."""
        return {"tokenizer": self.tokenizer, "vocabulary": self.vocabulary}

    @property
    def tasks(self) -> list[str]:
        return list(known_tasks()) if self.embedded else []

    def problem(self, task: str, index: int) -> Problem:
        """A held-out problem, always the same."""
        if task not in self.tasks:
            raise ValueError(f"Invalid task: expected one of {', '.join(self.tasks) or 'none'}, got {task[:60]!r}")
        return next(islice(generate(task, index + 1), index, None))

    def length(self, problem: Problem | None = None) -> int:
        """How many masks usually follow a prompt."""
        if problem is not None:
            return region(problem.task)
        return REGION if self.embedded else USUAL_LENGTH

    def inputs(self, prompt: str, chat: bool) -> Any:
        return [{"role": "user", "content": prompt}] if chat else prompt
