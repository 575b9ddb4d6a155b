"""Checks of arguments with messages for Python. The C++ side would answer with the signature of a binding."""

from __future__ import annotations

import contextlib
import numbers
import operator
from typing import Any

from ._errors import InvalidArgument, Unsupported

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


def attribute(owner: Any, name: str, default: Any = None) -> Any:
    """The attribute; `default` if there is none or reading it fails, as it may do with any error."""
    try:
        return getattr(owner, name, default)
    except Exception:
        return default


def exists(owner: Any, name: str) -> bool:
    """True if there is such an attribute, and reading it does not fail."""
    return attribute(owner, name, exists) is not exists


def has(owner: Any, method: str) -> bool:
    """True if there is such a method."""
    return callable(attribute(owner, method))


def dtype_name(argument: str, dtype: Any) -> str:
    """The name of a dtype of PyTorch or NumPy, or a name itself. Raises InvalidArgument that names the argument."""
    if isinstance(dtype, str):
        return dtype
    if str(dtype).startswith("torch."):
        return str(dtype).removeprefix("torch.")
    import numpy

    try:
        return numpy.dtype(dtype).name
    except TypeError as error:
        raise InvalidArgument(f'`{argument}` names a type, such as "float32", not {dtype!r}.') from error


def numpy_for(what: str) -> Any:
    """NumPy. Raises Unsupported, which says what needs it, if it is not installed."""
    try:
        import numpy
    except ImportError:
        raise Unsupported(f"{what} needs NumPy, which is not installed: pip install numpy.") from None
    return numpy
