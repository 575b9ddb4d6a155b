"""move_: a module's tensors travel together, and stay what they are to each other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from .._engines import engine_for
from .._errors import InvalidArgument
from .transfers import to_device, to_host

Module = TypeVar("Module")

# What lies in a storage is moved from a multiple of this, so that each view keeps its alignment.
_ALIGNMENT = 256


def move_(module: Module, device: Any, optimizer: Any = None) -> Module:
    """Move a torch.nn.Module to a device, in place and in one go, and return it.

    Parameters, buffers (persistent or not) and gradients travel together, as in `to_device` and `to_host`. PyTorch's
    current stream on a GPU waits for them. A move to the host blocks until they are there. Parameters stay the same
    objects, as with `module.to(device)`: optimizers keep them, with their hooks and `requires_grad`. Tensors that share
    a storage share one afterwards, with the same strides and distances, so tied weights stay tied. Tensors in other
    attributes of the module move only if its own `_apply` moves them.

    Both ends need room for the whole module. On a GPU its memory is one block of PyTorch's allocator, which is free
    again when the last tensor in it is gone. The new storages cannot be resized. Only one thread may use the module
    during the call. After an error the module is as it was.

    Args:
        module: A torch.nn.Module. If it is there already, it stays as it is.
        device: As in `to_device`; every host device means "cpu".
        optimizer: Its state for the module's parameters moves along. As in PyTorch, `step` stays on the host unless the
            optimizer is capturable or fused. Without it, move the module before the first step.

    Raises:
        TypeError: It is something else than a module or an optimizer.
        InvalidArgument: The tensors are on several devices, on meta, or neither on the host nor on a GPU, or one is
            sparse, quantised, lazy, a conjugate view or of a type of its own. The error has the parameter's name.
        OutOfMemory, DeviceError: An end has no room, or the device fails.

    Examples:
        >>> model = torch.nn.Linear(4, 2)
        >>> penstock.move_(model, "auto") is model
        True
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(module, torch.nn.Module):
        raise TypeError(f"move_ moves a torch.nn.Module, not a {type(module).__name__}: see to_device and to_host.")
    engine = engine_for(device)
    target = torch.device("cuda", engine.index) if engine.is_cuda else torch.device("cpu")
    if not isinstance(optimizer, torch.optim.Optimizer | None):
        raise TypeError(f"move_ moves the state of a torch.optim.Optimizer, not of a {type(optimizer).__name__}.")
    tensors = [tensor for tensor in tensors_of(module) if tensor.device != target]
    state = [(its, key) for its, key in state_of(optimizer, module) if its[key].device != target]
    if tensors or state:
        send = (lambda parts: to_device(parts, engine.spec)) if engine.is_cuda else to_host
        relocate(module, tensors, state, target, send)
    return module


def tensors_of(module: Any) -> list[Any]:
    """The tensors that are moved. Raises InvalidArgument, with the name, if one of them cannot be."""
    torch = sys.modules["torch"]
    named = dict(_named_tensors(module))
    for name, tensor in named.items():
        why = _why_not(tensor, torch)
        if why is not None:
            raise InvalidArgument(f"{name!r} cannot be moved: it {why}.")
    homes = {tensor.device: name for name, tensor in named.items()}
    if len(homes) > 1:
        places = ", ".join(f"{name!r} on {home}" for home, name in homes.items())
        raise InvalidArgument(f"The module is on several devices: {places}. Use module.to(device).")
    return list(named.values())


def state_of(optimizer: Any, module: Any) -> list[tuple[Any, Any]]:
    """Where an optimizer has tensors that go where the module's parameters go: containers, and keys in them."""
    places = []
    own = {id(parameter) for parameter in module.parameters()}
    for group in optimizer.param_groups if optimizer is not None else ():
        steps = group.get("capturable") or group.get("fused")
        for parameter in group["params"]:
            if id(parameter) in own:
                places += _tensors_in(optimizer.state.get(parameter, {}), steps)
    for its, key in places:
        why = _why_not(its[key], sys.modules["torch"])
        if why is not None:
            raise InvalidArgument(f"{key!r} of the optimizer's state cannot be moved: it {why}.")
    return places


def _tensors_in(its: Any, steps: bool) -> Iterator[tuple[Any, Any]]:
    for key, value in list(its.items() if isinstance(its, dict) else enumerate(its)):
        if isinstance(value, sys.modules["torch"].Tensor):
            if steps or key != "step":
                yield its, key
        elif isinstance(value, dict | list):
            yield from _tensors_in(value, steps)


def relocate(
    module: Any, tensors: list[Any], state: list[tuple[Any, Any]], target: Any, send: Callable[[list[Any]], list[Any]]
) -> None:
    """Puts copies that `send` makes in the places of a module's tensors, and of an optimizer's. What the module may
    have besides goes to `target`."""
    torch = sys.modules["torch"]
    # Autograd could not use what is made in inference mode.
    with torch.inference_mode(False), torch.no_grad():
        copies = moved([*tensors, *(its[key] for its, key in state)], send)
        _replace(module, tensors, copies[: len(tensors)], target)
        for (its, key), copy in zip(state, copies[len(tensors) :], strict=True):
            its[key] = copy


def moved(tensors: list[Any], send: Callable[[list[Any]], list[Any]]) -> list[Any]:
    """Tensors like these, elsewhere: those of one storage have one storage there. `send` copies a list of bytes."""
    torch = sys.modules["torch"]
    by_storage: dict[int, list[int]] = {}
    for place, tensor in enumerate(tensors):
        by_storage.setdefault(tensor.untyped_storage()._cdata, []).append(place)
    begins, parts = [], []
    for places in by_storage.values():
        spans = [_span(tensors[place]) for place in places]
        begin = min(first for first, _ in spans) // _ALIGNMENT * _ALIGNMENT
        whole = torch.empty(0, dtype=torch.uint8, device=tensors[places[0]].device)
        begins.append(begin)
        parts.append(whole.set_(tensors[places[0]].untyped_storage(), begin, (max(end for _, end in spans) - begin,)))
    results = list(tensors)
    for places, begin, part in zip(by_storage.values(), begins, send(parts), strict=True):
        for place in places:
            old = tensors[place]
            offset = part.storage_offset() + old.storage_offset() - begin // old.element_size()
            view = torch.empty(0, dtype=old.dtype, device=part.device)
            results[place] = view.set_(part.untyped_storage(), offset, old.size(), old.stride())
    return results


def _replace(module: Any, tensors: list[Any], others: list[Any], target: Any) -> None:
    """By the module's own `_apply`, as module.to does. If that raises, undoes it."""
    new = {id(tensor): other for tensor, other in zip(tensors, others, strict=True)}
    data = [tensor.data for tensor in tensors]
    members = [(its, dict(its)) for part in module.modules() for its in (part._parameters, part._buffers)]
    try:
        module._apply(lambda tensor: new[id(tensor)] if id(tensor) in new else tensor.to(target))
    except BaseException:
        for tensor, old in zip(tensors, data, strict=True):
            tensor.data = old
        for its, before in members:
            its.update(before)
        raise


def _named_tensors(module: Any) -> Iterator[tuple[str, Any]]:
    for name, parameter in module.named_parameters():
        yield name, parameter
        if parameter.grad is not None:
            yield f"{name}.grad", parameter.grad
    yield from module.named_buffers()


def _span(tensor: Any) -> tuple[int, int]:
    """The bytes of its storage from its first element to its last."""
    size, begin = tensor.element_size(), tensor.storage_offset() * tensor.element_size()
    if tensor.numel() == 0:
        return begin, begin
    steps = sum((extent - 1) * stride for extent, stride in zip(tensor.size(), tensor.stride(), strict=True))
    return begin, begin + (steps + 1) * size


def _why_not(tensor: Any, torch: Any) -> str | None:
    if torch.nn.parameter.is_lazy(tensor):
        return "has no shape yet. Call the module once with a batch"
    if tensor.is_meta:
        return "is on meta and has no data. module.to_empty(device=...) makes room for it"
    if tensor.device.type not in ("cpu", "cuda"):
        return f"is on {tensor.device}. Use module.to(device)"
    if type(tensor.detach()) is not torch.Tensor or tensor.layout is not torch.strided or tensor.is_quantized:
        return "is sparse, quantised or of a type of its own. Use module.to(device)"
    if tensor.is_conj() or tensor.is_neg():
        return "is a conjugate or negative view. Store its resolve_conj().resolve_neg()"
    return None
