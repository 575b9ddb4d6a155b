"""How objects that the C++ side does not know by their exact type are taken apart and put together again."""

from __future__ import annotations

import collections.abc
import copy
import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable
from time import monotonic
from typing import Any

from . import _core

_registered: dict[type, tuple[Callable, Callable]] = {}


def register_batch_type(batch_type: type, flatten: Callable[[Any], Any], unflatten: Callable[[Any, Any], Any]) -> None:
    """Teach `feed`, `to_device` and `to_host` a type of batch.

    `flatten(batch)` gives its arrays in any nest of lists, tuples and dicts. `unflatten(batch, nest)` gives a new
    batch from the old one and a nest of the same structure whose arrays lie on the device. Subclasses are included,
    unless they are registered themselves. This takes precedence over everything else that a type has, such as
    `pin_memory()`. Raises TypeError if `batch_type` is not a type.
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
        if isinstance(value, str | bytes | bytearray | int | float | complex):
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
        if self.refuse and callable(getattr(value, "pin_memory", None)):
            return self.refuse(value)
        own = self._own_protocol(value)
        if own is not None:
            return own, None
        container = _container(value)
        if container is not None:
            return container
        if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
            return self._foreign(value)
        if self.sends and (hasattr(value, "__arrow_c_stream__") or hasattr(value, "__dataframe__")):
            return (
                f"a table ({type(value).__module__}.{type(value).__name__}) is not sent as it is. Send a dict of its "
                "columns as arrays; penstock.Loader feeds tables."
            )
        if not isinstance(value, type) and callable(getattr(value, "to", None)):
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
        if not callable(getattr(value, "pin_memory", None)):
            return None
        moves = callable(getattr(value, "to", None))
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
        import numpy

        if int(value.__dlpack_device__()[0]) in (1, 3):
            return numpy.from_dlpack(value), _same
        if self.refuse and not self.copies:
            return self.refuse(value)
        if self.target != "cpu":
            return value, None
        if isinstance(value, _core.Array):
            from ._transfers import to_host

            there = to_host(value)
        elif hasattr(value, "get"):  # CuPy
            there = value.get()
        else:
            there = numpy.asarray(value)
        return there, _same if self.copies else None


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
    moved = value.to(target, non_blocking=True) if may_run_on and target != "cpu" else value.to(target)
    return value if moved is None else moved


def _array(value: Any, numpy: Any, expanded: bool) -> Any:
    if value.dtype.kind in "US":
        return value, None
    if value.dtype.kind == "O":
        return (
            "an array of Python objects has no bytes to send. Give it a numeric dtype, for instance by stacking or "
            "padding, or put its objects into a list."
        )
    if isinstance(value, numpy.ma.MaskedArray):
        return "a masked array would lose its mask. Send `.data` and `.mask` as two arrays."
    if expanded or value.dtype.kind not in "biufc":
        return f"arrays of dtype {value.dtype} cannot be sent. View or convert it to a number or bool type."
    return numpy.ascontiguousarray(value, value.dtype.newbyteorder("=")).view(numpy.ndarray).reshape(value.shape), _same


def parts_of(value: Any) -> Any:
    """(children, build) for containers and objects of registered types; None for anything else."""
    return _registered_parts(value) or _container(value)


def _container(value: Any) -> Any:
    """(children, build) for containers that Python itself knows; None for anything else."""
    if isinstance(value, tuple):
        if hasattr(value, "_fields"):
            return list(value), lambda items: type(value)(*items)
        return list(value), lambda items: type(value)(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]

        def rebuild(fields: dict[str, Any]) -> Any:
            new = copy.copy(value)
            for name, item in fields.items():
                object.__setattr__(new, name, item)
            return new

        return {name: getattr(value, name) for name in names}, rebuild
    if isinstance(value, collections.abc.Mapping):
        return dict(value), lambda items: _refill(value, items, items.items())
    if isinstance(value, collections.abc.Sequence) and not isinstance(value, range | memoryview):
        return list(value), lambda items: _refill(value, items, enumerate(items))
    return None


def _refill(value: Any, plain: Any, items: Any) -> Any:
    """A copy of the container with new items; a plain dict or list if it cannot be changed."""
    if not hasattr(value, "__setitem__"):
        return plain
    try:
        new = copy.copy(value)
        for key, item in items:
            new[key] = item
    except TypeError:
        return plain
    return new
