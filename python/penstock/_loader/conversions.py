"""The types in which a Loader delivers its fields: `to`, `scale` and `shift`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import _core
from .._checks import dtype_name
from .._errors import InvalidArgument
from .chunks import side_by_side
from .columns import Fields, cast, refuse_rounded_columns, refuse_rounding
from .parquet import Part

# The types in which values can be scaled and shifted: see FieldOptions in loader_options.hpp.
_FLOATS = ("float16", "bfloat16", "float32")


def field_options(fields: Fields, targets: list[str | None], scale: Any, shift: Any) -> list:
    """What the C++ side takes: name, type, scale, shift and channel axis of each field that is changed."""
    scales = _per_field("scale", scale, fields.names, targets)
    shifts = _per_field("shift", shift, fields.names, targets)
    return [
        (name, target, scale, shift, channel_axis(name, tuple(array.shape[1:]), max(scale, shift, key=len)))
        for name, array, target, scale, shift in zip(fields.names, fields.arrays, targets, scales, shifts, strict=True)
        if target is not None
    ]


def channel_axis(name: str, shape: tuple[int, ...], numbers: list[float]) -> int:
    """The axis of a sample that has as many elements as there are numbers."""
    if len(numbers) < 2:
        return 0
    axes = [axis for axis, length in enumerate(shape) if length == len(numbers)]
    if len(axes) == 1:
        return axes[0]
    found = "none" if not axes else "more than one"
    raise InvalidArgument(
        f"`scale` and `shift` have {len(numbers)} numbers for '{name}', whose samples have the shape {shape}: of its "
        f"axes, {found} has {len(numbers)} elements. Pass one number, or reshape the samples so that only the axis of "
        "the channels is so long, or scale the batch on the device."
    )


def targets_of(fields: Fields, to: Any) -> list[str | None]:
    """The type in which each field is delivered; None: as it is stored."""
    names = fields.names
    if isinstance(to, Mapping):
        wanted = _by_name("to", to, names)
        return [None if value is None else dtype_name("to", value) for value in wanted]
    if to is not None and not isinstance(to, str) and isinstance(to, Sequence):
        if len(to) != len(names):
            raise InvalidArgument(f"`to` has {len(to)} entries for {len(names)} fields.")
        return [None if value is None else dtype_name("to", value) for value in to]
    if to is None:
        return [None] * len(names)
    target = dtype_name("to", to)
    targets = [target if _is_for(fields, i, target) else None for i in range(len(names))]
    if not any(targets):
        stored = ", ".join(f"{name} ({_stored(array)})" for name, array in zip(names, fields.arrays, strict=True))
        raise InvalidArgument(
            f"`to` is {target} alone, and no field can be widened to it, if those without axes besides that of samples "
            f"are left as they are. The fields are {stored}. Name the field: to={{{names[0]!r}: {target!r}}}."
        )
    return targets


def convert(fields: Fields, targets: list[str | None], scale: Any, shift: Any) -> Fields:
    """The fields, of which those are converted here that the device cannot widen: of float64, bool and wide integers.
    They are copied once. Raises InvalidArgument as `cast` and `refuse_rounding` do, and for arrays in files."""
    scales = _per_field("scale", scale, fields.names, targets)
    shifts = _per_field("shift", shift, fields.names, targets)
    arrays = [
        array
        if target is None or _core.can_widen(_stored(array), target)
        else _converted(fields, array, name, target, bool(scale or shift))
        for name, array, target, scale, shift in zip(fields.names, fields.arrays, targets, scales, shifts, strict=True)
    ]
    return fields._replace(arrays=arrays, of_tables={})


def _stored(array: Any) -> str:
    return str(array.dtype).removeprefix("torch.")


def _is_for(fields: Fields, i: int, target: str) -> bool:
    """True if `to=target` alone means the field. Labels and tokens stay, but not the numbers of a table."""
    stored = _stored(fields.arrays[i])
    if fields.names[i] in fields.of_tables:
        return target in _FLOATS or _core.can_widen(stored, target)
    return len(fields.arrays[i].shape) > 1 and (
        _core.can_widen(stored, target) or (target in _FLOATS and stored == "float64")
    )


def _converted(fields: Fields, array: Any, name: str, target: str, is_scaled: bool) -> Any:
    if target not in _FLOATS:
        return array  # the C++ side refuses it
    on_the_host = "float32" if target == "bfloat16" else target
    whole = on_the_host if is_scaled else target  # the device rounds what it has scaled
    if isinstance(array, Part):
        return array.converted(on_the_host, whole)
    if isinstance(array, _core.FileField) or _is_mapped(array):
        raise InvalidArgument(
            f"Field '{name}' is a file's array of {_stored(array)}. To deliver {target}, a Loader would read all of it "
            "into memory. If it may, write numpy.array(numpy.load(FILE)). Otherwise write a file of another type once."
        )
    array = side_by_side(array)
    values = array if hasattr(array, "__array_interface__") else array.numpy()
    refuse_rounding(values, whole, name)
    table = fields.of_tables.get(name)
    if table is not None:
        refuse_rounded_columns(table, whole)
    return cast(values, on_the_host, name)


def _is_mapped(array: Any) -> bool:
    """True if an array of NumPy is a view of a memory map."""
    while array is not None and not hasattr(array, "filename"):
        array = getattr(array, "base", None)
    return array is not None


def _by_name(what: str, values: Mapping[Any, Any], names: list[str]) -> list[Any]:
    by_name = {str(key): value for key, value in values.items()}
    unknown = sorted(by_name.keys() - set(names))
    if unknown:
        raise InvalidArgument(
            f"`{what}` names unknown fields: {', '.join(unknown)}. The fields are {', '.join(names)}."
        )
    return [by_name.get(name) for name in names]


def _per_field(what: str, value: Any, names: list[str], targets: list[str | None]) -> list[list[float]]:
    """The numbers of `scale` or `shift` for each field; empty: none."""
    if value is None:
        return [[] for _ in names]
    fits = [target in _FLOATS for target in targets]
    if not isinstance(value, Mapping):
        if not any(fits):
            raise InvalidArgument(
                f'`{what}` needs a field that `to` delivers as float32, float16 or bfloat16: pass to="float32".'
            )
        return [_as_floats(what, value) if fit else [] for fit in fits]
    values = _by_name(what, value, names)
    for name, numbers, fit in zip(names, values, fits, strict=True):
        if numbers is not None and not fit:
            raise InvalidArgument(
                f"`{what}` names '{name}', which `to` does not deliver as float32, float16 or bfloat16: pass "
                f'to={{{name!r}: "float32"}}.'
            )
    return [[] if numbers is None else _as_floats(what, numbers) for numbers in values]


def _as_floats(what: str, value: Any) -> list[float]:
    try:
        if isinstance(value, str):
            raise TypeError
        single = not hasattr(value, "__len__") or getattr(value, "ndim", 1) == 0
        return [float(value)] if single else [float(number) for number in value]
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"`{what}` is a number, or one for each channel, not {value!r}.") from error
