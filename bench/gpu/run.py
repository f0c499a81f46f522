"""Runs cases: check first, then time. What is wrong, missing or does not fit is written down, never timed."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from bench.gpu.case import OURS, Case, Contender, Plan
from bench.gpu.clock import Clock, Timed


@dataclass
class Outcome:
    """What was found of a case.

    Attributes
    ----------
    times : dict
        Microseconds of ours and of the others whose results are right, and of the limit.
    skipped : dict
        Who was not timed, and why.
    wrong : str or None
        What is wrong with our result. Then nothing is timed.
    """

    plan: Plan
    times: dict[str, Timed] = field(default_factory=dict)
    limit: Timed | None = None
    limited_by: str | None = None
    skipped: dict[str, str] = field(default_factory=dict)
    wrong: str | None = None

    @property
    def is_timed(self) -> bool:
        return OURS in self.times


class DeviceLost(RuntimeError):
    """Nothing more can run in this process, for example after a kernel wrote where it must not."""


def run(plans: Iterable[Plan], clock: Clock) -> Iterator[Outcome]:
    """The outcome of each plan; one that fails does not stop the others, unless the device is lost with it."""
    for plan in plans:
        torch.manual_seed(0)
        outcome = measure(plan, clock)
        yield outcome
        check_device(outcome)
        gc.collect()  # the next case may need the memory
        torch.cuda.empty_cache()


def check_device(outcome: Outcome) -> None:
    """Raises if the device does nothing more: every later case would look wrong, though its kernels are not."""
    if outcome.wrong is None and not outcome.skipped:
        return
    try:
        torch.cuda.synchronize()
        torch.ones(1, device="cuda").item()
    except torch.OutOfMemoryError:
        return  # memory may be full, and the device is there
    except Exception as error:
        raise DeviceLost(in_words(error)) from error


def measure(plan: Plan, clock: Clock) -> Outcome:
    outcome = Outcome(plan)
    try:
        case = plan.make()
    except torch.OutOfMemoryError as error:
        outcome.skipped[OURS] = in_words(error)
        return outcome
    except Exception as error:
        outcome.wrong = in_words(error)
        return outcome
    outcome.skipped.update(case.missing)
    right = [contender for contender in case.contenders if is_right(contender, outcome)]
    if OURS not in [contender.name for contender in right]:
        return outcome
    try:
        time_all(case, right, outcome, clock)
    except Exception as error:  # out of memory, mostly: everything has run once
        outcome.times, outcome.skipped[OURS] = {}, in_words(error)
    return outcome


def is_right(contender: Contender, outcome: Outcome) -> bool:
    """Runs a contender once. What is wrong with ours is a failure; what is wrong with another one is a remark."""
    try:
        result = contender.run()
        torch.cuda.synchronize()
        found = contender.check(result)
    except torch.OutOfMemoryError as error:
        outcome.skipped[contender.name] = in_words(error)
        return False
    except Exception as error:
        found = in_words(error)
    if found is None:
        return True
    if contender.name == OURS:
        outcome.wrong = found
    else:
        outcome.skipped[contender.name] = found
    return False


def time_all(case: Case, right: list[Contender], outcome: Outcome, clock: Clock) -> None:
    """Times everybody whose result is right, and the limits beside them."""
    runs = {contender.name: contender.run for contender in right}
    limits = {f"limit: {name}": limit for name, (limit, _) in case.limits.items()}
    for limit in limits.values():
        limit()
    times = clock.times(runs | limits, case.timing)
    outcome.times = {name: times[name] for name in runs}
    each = {name: parts(times[f"limit: {name}"], share) for name, (_, share) in case.limits.items()}
    if each:
        outcome.limited_by = max(each, key=lambda name: each[name].median)
        outcome.limit = each[outcome.limited_by]


def parts(timed: Timed, share: int) -> Timed:
    return Timed(timed.median / share, timed.low / share, timed.high / share, timed.rounds)


def in_words(error: Any) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
