"""How objects that the C++ side does not know by their exact type are taken apart and put together again."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from time import monotonic
from typing import Any

from .. import _core
from .._checks import attribute, has, numpy_for
from .._engines import engine_of_gpu, host_engines
from .containers import container_of, twin_of

_registered: dict[type, tuple[Callable, Callable]] = {}


def register_batch_type(batch_type: type, flatten: Callable[[Any], Any], unflatten: Callable[[Any, Any], Any]) -> None:
    """Teach `feed`, `to_device` and `to_host` a type of batch.

    This takes precedence over everything else that a type has, such as `pin_memory()`.

    Args:
        batch_type: The type. Subclasses are included, unless they are registered themselves.
        flatten: `flatten(batch)` gives its arrays in any nest of lists, tuples and dicts.
        unflatten: `unflatten(batch, nest)` gives a new batch from the old one and a nest of the same structure whose
            arrays lie on the device.

    Raises:
        TypeError: `batch_type` is not a type.

    Examples:
        >>> class Pair:
        ...     def __init__(self, left, right): self.left, self.right = left, right
        >>> penstock.register_batch_type(Pair, lambda pair: (pair.left, pair.right), lambda old, parts: Pair(*parts))
    """
    if not isinstance(batch_type, type):
        raise TypeError(f"register_batch_type takes a type, not {batch_type!r}")
    _registered[batch_type] = (flatten, unflatten)


class Expander:
    """Tells the C++ side what to do with one object: see `Tree` in tree.hpp.

    `target` is PyTorch's name for the nest's destination. If `sends`, objects that cannot go there are refused;
    otherwise they stay on the host. `refuse` says why an object that would move itself is refused; None: it may. If
    `copies`, arrays of the host are copied too, and those that require a gradient are copied without it.
    """

    def __init__(
        self, target: str, sends: bool, refuse: Callable[[Any], str] | None = None, copies: bool = False
    ) -> None:
        self.target = target
        self.sends = sends
        self.refuse = refuse
        self.copies = copies
        self.pin_seconds = 0.0  # in which objects pinned themselves

    def __call__(self, value: Any, expanded: bool) -> Any:
        parts = _registered_parts(value)
        if parts is not None:
            return parts
        if isinstance(value, str | bytes | bytearray | int | float | complex | type):
            return value, None
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            return self._tensor(value, torch, expanded)
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            if isinstance(value, numpy.generic):
                return value, None
            if isinstance(value, numpy.ndarray):
                return _array(value, numpy, expanded)
        if torch is not None and isinstance(value, torch.nn.Module):
            return (
                "a module is not copied. Move it with penstock.move_(module, device), or copy its weights with "
                "to_device(module.state_dict())."
            )
        if self.refuse and has(value, "pin_memory"):
            return self.refuse(value)
        own = self._own_protocol(value)
        if own is not None:
            return own, None
        container = container_of(value)
        if container is not None:
            return (_to(twin_of(value), self.target), None) if not self.refuse and has(value, "to") else container
        return self._other(value)

    def _other(self, value: Any) -> Any:
        """For an object that is neither an array that PyTorch or NumPy know, nor a container."""
        if has(value, "__dlpack__") and has(value, "__dlpack_device__"):
            return self._foreign(value)
        if self.sends and (has(value, "__arrow_c_stream__") or has(value, "__dataframe__")):
            return (
                f"a table ({type(value).__module__}.{type(value).__name__}) is not sent as it is. Send a dict of its "
                "columns as arrays; penstock.Loader feeds tables."
            )
        if has(value, "to"):
            return self.refuse(value) if self.refuse else (_to(value, self.target), None)
        return value, None

    def _tensor(self, value: Any, torch: Any, expanded: bool) -> Any:
        if self.copies and type(value) in (torch.Tensor, torch.nn.Parameter):
            value = value.detach()
        plain = type(value) is torch.Tensor and value.layout is torch.strided and not value.is_quantized
        if plain and not value.requires_grad and value.device.type == "cpu" and not expanded:
            value = value.resolve_conj().resolve_neg()
            # Gaps between the elements: PyTorch closes them.
            return value.contiguous(), _same
        if plain and value.device.type == "cuda" and self.target == "cpu" and not expanded:
            return value.detach().resolve_conj().resolve_neg().contiguous(), _same
        if value.is_meta:
            return "a meta tensor has no data to send."
        if self.refuse:
            return self.refuse(value)
        # Only PyTorch can copy these: sparse, quantised, subclasses, tensors in an autograd graph.
        return value.to(self.target, non_blocking=self.target != "cpu"), None

    def _own_protocol(self, value: Any) -> Any:
        """The object moved by its own `pin_memory()` and `to()`; None if it has no `pin_memory()` to call here."""
        if not has(value, "pin_memory"):
            return None
        moves = has(value, "to")
        if self.target == "cpu":  # only GPUs use pinned memory, and PyTorch needs one to pin
            return _to(value, self.target) if moves else None
        began = monotonic()
        pinned = _pin(value, self.target)
        self.pin_seconds += monotonic() - began
        if pinned is None:
            raise TypeError(
                f"{type(value).__name__}.pin_memory() returned None; it must return the pinned object "
                "(`return self` if it pins in place)."
            )
        return _to(pinned, self.target) if moves else pinned

    def _foreign(self, value: Any) -> Any:
        if _is_on_host(value):
            array = host_array(value)
            return array if isinstance(array, str) else _array(array, sys.modules["numpy"], expanded=False)
        if self.target != "cpu":
            return value, None
        if isinstance(value, _core.Array):
            there = on_host(value)
        elif has(value, "get"):  # CuPy
            there = value.get()
        else:
            there = numpy_for(f"Reading a {type(value).__name__}").asarray(value)
        return there, _same if self.copies else None


def on_host(tree: Any) -> Any:
    """A nest whose arrays are on the host; see `to_host`."""
    return _core.fetch(tree, Expander("cpu", sends=False), host_engines(), engine_of_gpu)


def host_array(value: Any) -> Any:
    """The NumPy array of another library's array, or a sentence that says why there is none."""
    if not _is_on_host(value):
        return on_host(value)
    numpy = numpy_for(f"Reading a {type(value).__name__}")
    try:
        return numpy.from_dlpack(value)
    except Exception as error:  # NumPy's DLPack has no bfloat16, for instance, of which ml_dtypes makes arrays
        array = numpy.asarray(value) if has(value, "__array__") else None
        if array is None or array.dtype.kind == "O":
            return f"NumPy cannot read this {type(value).__name__} ({error}). Convert it to a NumPy array or a tensor."
        return array


def _is_on_host(value: Any) -> bool:
    return int(value.__dlpack_device__()[0]) in (1, 3)


def _same(nest: Any) -> Any:
    return nest


def _registered_parts(value: Any) -> Any:
    """(children, build) for objects of a registered type; None for anything else."""
    for base in type(value).__mro__:
        if base in _registered:
            flatten, unflatten = _registered[base]
            return flatten(value), functools.partial(unflatten, value)
    return None


def _pin(value: Any, target: str) -> Any:
    """Calls `value.pin_memory()`, with a device if it takes one."""
    try:
        parameters = inspect.signature(value.pin_memory).parameters.values()
    except (TypeError, ValueError):
        parameters = ()
    by_name = any(
        p.kind is p.VAR_KEYWORD or (p.name == "device" and p.kind is not p.POSITIONAL_ONLY) for p in parameters
    )
    by_position = any(p.name == "device" and p.kind is p.POSITIONAL_ONLY for p in parameters)
    if by_name:
        return value.pin_memory(device=target)
    return value.pin_memory(target) if by_position else value.pin_memory()


def _to(value: Any, target: str) -> Any:
    """Calls `value.to(target)`. For a GPU it does not wait for the copy, if `to` takes `non_blocking`."""
    try:
        parameters = inspect.signature(value.to).parameters.values()
    except (TypeError, ValueError):
        parameters = ()
    may_run_on = any(p.kind is p.VAR_KEYWORD or p.name == "non_blocking" for p in parameters)
    options: dict[str, Any] = {"non_blocking": True} if may_run_on and target != "cpu" else {}
    if any(p.name == "device" and p.kind is p.KEYWORD_ONLY for p in parameters):  # such as a storage's
        moved = value.to(device=target, **options)
    else:
        moved = value.to(target, **options)
    return value if moved is None else moved


def _array(value: Any, numpy: Any, expanded: bool) -> Any:
    if value.dtype.kind in "UST":
        return value, None
    if isinstance(value, numpy.ma.MaskedArray):
        return "a masked array would lose its mask. Send `.data` and `.mask` as two arrays."
    if _carries_more(value, numpy):
        return value, None
    if value.dtype.kind == "O":
        return (
            "an array of Python objects has no bytes to send. Give it a numeric dtype, for instance by stacking or "
            "padding, or put its objects into a list."
        )
    if expanded or value.dtype.kind not in "biufcV":
        return f"arrays of dtype {value.dtype} cannot be sent. View or convert it to a number or bool type."
    return numpy.ascontiguousarray(value, value.dtype.newbyteorder("=")).view(numpy.ndarray).reshape(value.shape), _same


def _carries_more(array: Any, numpy: Any) -> bool:
    """True if an array of a type of its own has more than its numbers, such as a unit, which a tensor would lose."""
    kind = type(array)
    if kind.__module__.partition(".")[0] == "numpy":
        return False
    return kind.__array_finalize__ is not numpy.ndarray.__array_finalize__ or bool(attribute(array, "__dict__"))


def parts_of(value: Any) -> Any:
    """(children, ...) for containers and objects of registered types; None for anything else."""
    return _registered_parts(value) or container_of(value)
