"""What the loop and a trace need to know of a scheduler. A scheduler describes itself; nobody asks for its class."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from lsp.decoding.options import Options
from lsp_kernels import PrefixRule

if TYPE_CHECKING:
    from lsp.decoding.step import Step
    from lsp.tracing.records import PassRecord

Chosen = tuple[np.ndarray, np.ndarray]
"""Positions of one sequence, and the tokens to write there."""


class Scheduler:
    """Decides in every step which masks to commit. Subclass it and write `__call__`; the rest has defaults.

    A plain function of a step is a scheduler too; `Custom` gives it a name and options.

    Attributes
    ----------
    key : str
        The name by which `lsp.generate` and the command line find the class; the empty string for none.
    name : str
        What it is called in headings.
    options : Options
        How the loop runs for it by default. What a caller gives replaces these, one by one.
    measure : {"confidence", "margin"}
        What it goes by, for charts.
    level : float or None
        The value of the measure that it asks for, if it asks for the same one in every pass.
    islands : float or None
        The margin of stable islands, if it has them.
    fade : float
        How much less a margin counts for every mask before it, if that is what `counted` gives.
    shown_rule : PrefixRule or None
        The selection rule whose steps a trace shows, if it commits by one.
    notes : list of str
        Its parameters, in words, for headings.
    """

    key: ClassVar[str] = ""
    registered: ClassVar[dict[str, Callable[[], Scheduler]]] = {}
    measure: ClassVar[Literal["confidence", "margin"]] = "confidence"
    islands: float | None = None
    fade: float = 0.0

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if key := cls.__dict__.get("key"):
            other = Scheduler.registered.get(key, cls)
            if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
                raise ValueError(f"Invalid key of {cls.__name__}: expected a new one, got {key!r}, which is {other!r}")
            Scheduler.registered[key] = cls

    def __call__(self, step: Step) -> list[Chosen]:
        """Positions and tokens for every sequence of ``step.canvases``, at least one each."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        return type(self).__name__

    @property
    def options(self) -> Options:
        return Options()

    @property
    def level(self) -> float | None:
        return None

    @property
    def shown_rule(self) -> PrefixRule | None:
        return None

    @property
    def notes(self) -> list[str]:
        return []

    def check(self, options: Options) -> None:
        """Raises a ValueError for options that it cannot work with, before the first pass."""

    def check_vocabulary(self, size: int) -> None:
        """Raises a ValueError for a vocabulary that it cannot work with, before the first pass."""

    def counted(self, margins: np.ndarray) -> np.ndarray:
        """Margins of masks, from the first one on, as much as they count for it; a trace has these."""
        return margins

    def reason(self, seen: PassRecord) -> str:
        """Why it chose what it chose in a pass, as a sentence for the reader of a trace; empty for no comment."""
        return ""


class Custom(Scheduler):
    """A function of a step as a scheduler, with the name and the options of your choice.

    Parameters
    ----------
    choose : callable
        From a `Step` to positions and tokens for every sequence of ``step.canvases``.
    name : str, optional
        By default ``choose.name`` if it has one, else the function's own name in words.
    options : Options, optional
        By default ``choose.options`` if it has some, else ``Options()``.

    Examples
    --------
    >>> def outside_in(step):
    ...     ends = [np.unique(canvas.masks[[0, -1]]) for canvas in step.canvases]
    ...     return [(where, stats.tokens) for where, stats in zip(ends, step.stats(ends))]
    >>> Custom(outside_in, options=Options(block_length=16))
    Custom('Outside in', options=Options(block_length=16))
    """

    def __init__(
        self, choose: Callable[[Step], list[Chosen]], name: str | None = None, options: Options | None = None
    ) -> None:
        if not callable(choose) or isinstance(choose, type):
            raise TypeError(f"Invalid scheduler: expected a scheduler, its name or a function, got {choose!r}")
        self.choose = choose
        self._name = name if name is not None else getattr(choose, "name", None) or words_of(choose)
        self._options = options if options is not None else getattr(choose, "options", Options())
        if not isinstance(self._options, Options):
            raise TypeError(f"Invalid options of {self._name}: expected lsp.Options, got {self._options!r}")

    def __call__(self, step: Step) -> list[Chosen]:
        return self.choose(step)

    @property
    def name(self) -> str:
        return self._name

    @property
    def options(self) -> Options:
        return self._options

    def __repr__(self) -> str:
        changed = [f"{key}={value!r}" for key, value in vars(self.options).items() if value != getattr(Options(), key)]
        options = f", options=Options({', '.join(changed)})" if changed else ""
        return f"Custom({self.name!r}{options})"


def words_of(choose: Callable[..., Any]) -> str:
    """The name of a function or of an object's class, in words: ``outside_in`` is "Outside in"."""
    name: str = getattr(choose, "__name__", None) or type(choose).__name__
    if name == "<lambda>":
        return "Custom"
    words = name.strip("_").replace("_", " ")
    return words[:1].upper() + words[1:]


def described(given: Scheduler | Callable[[Step], list[Chosen]]) -> Scheduler:
    """A scheduler as it is; a plain function with a name and options."""
    return given if isinstance(given, Scheduler) else Custom(given)
