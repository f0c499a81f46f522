"""What fields of options and schedulers are declared as, checked: anything may come from a caller."""

from __future__ import annotations

from dataclasses import fields
from numbers import Real
from typing import Any

import numpy as np


def check_fields(settings: Any) -> None:
    """Refuses what is no number, or no switch, in the fields of a dataclass that are declared as such."""
    for field in fields(settings):
        value = getattr(settings, field.name)
        if field.type == "float" or (field.type == "float | None" and value is not None):
            check_number(field.name, value)
        if field.type == "bool" and not isinstance(value, bool | np.bool_):
            raise TypeError(f"Invalid {field.name}: expected True or False, got {value!r}")


def check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"Invalid {name}: expected a number, got {value!r}")
