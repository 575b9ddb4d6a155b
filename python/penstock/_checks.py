"""Checks of arguments with messages for Python. The C++ side would answer with the signature of a binding."""

from __future__ import annotations

import contextlib
import numbers
import operator
from typing import Any

from ._errors import InvalidArgument

MOST = 2**63 - 1


def whole(name: str, value: Any, least: int, most: int = MOST, what: str = "a whole number") -> int:
    """`value` as an int from `least` to `most`. Raises InvalidArgument that names it for anything else."""
    number = None
    if not isinstance(value, bool):
        with contextlib.suppress(TypeError):
            number = operator.index(value)
    if number is None or not least <= number <= most:
        too_large = number is not None and number > most
        bounds = f"{least} or more" if most >= MOST and not too_large else f"{least} to {most}"
        raise InvalidArgument(f"{name} is {what}, {bounds}, not {value!r}.")
    return number


def is_number(value: Any) -> bool:
    """True for a real number of any type, but not for a bool."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
