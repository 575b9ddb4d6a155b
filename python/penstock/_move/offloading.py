"""offload: modules take turns on a GPU."""

from __future__ import annotations

import sys
import threading
from typing import Any

from .._engines import engine_for
from .._errors import Error, InvalidArgument
from .modules import move_
from .parking import Parked, Skip, swap


class _DiffusersHook:
    """What diffusers' models and pipelines look for: where a module computes, and what brings it there."""

    def __init__(self, offloaded: Offload) -> None:
        self._offloaded, self.execution_device = offloaded, offloaded.device

    def pre_forward(self, module: Any, *_: Any, **__: Any) -> None:
        self._offloaded.use(module)

    def detach_hook(self, module: Any) -> Any:
        raise InvalidArgument("This module is offloaded by penstock: call remove() of its Offload.")


class Offload:
    """Modules of which the one in use is on the GPU, and the others are parked. Made by `penstock.offload`.

    As a context, it ends with `remove()`. Calls from several threads take turns, but a module must not be parked by one
    thread while another computes with it. Takes and raises what `offload` does.

    Examples:
        >>> with penstock.offload(encoder, decoder, device=gpu) as modules:
        ...     y = decoder(encoder(x))
        ...     modules.park()  # both are off the GPU
    """

    def __init__(self, modules: tuple[Any, ...], device: Any, skip: Skip | None) -> None:
        torch = sys.modules.get("torch")
        for module in modules:
            if torch is None or not isinstance(module, torch.nn.Module):
                raise TypeError(f"offload takes modules of PyTorch, not a {type(module).__name__}.")
        if len(set(modules)) < len(modules):
            raise InvalidArgument("offload takes each module once.")
        engine = engine_for(device)
        self.device = f"cuda:{engine.index}" if engine.is_cuda else "cpu"
        self._in_use: Any = None
        self._recent: tuple[Any, Any] = (None, None)  # the last two that came
        self._came_after: dict[tuple[Any, Any], Any] = {}
        self._ahead: Any = None  # the module that may come next, if its bytes are on their way
        self._seen_bytes = self._most_bytes = 0
        self._states: dict[Any, Parked] = {}
        self._from_host: set[Any] = set()
        self._hooks: list[Any] = []
        self._lock = threading.RLock()
        try:
            for module in modules:
                self._add(module, skip)
        except BaseException:
            self.remove()
            raise

    def use(self, module: Any) -> None:
        """Bring a module to the GPU, while the one there leaves. Blocks until it is there. Raises as `swap` does.

        Its `forward` does so by itself, and so do the methods of diffusers' models. Other methods do not.
        """
        with self._lock:
            if module is self._in_use:
                return
            if module not in self._states:
                raise InvalidArgument(f"This {type(module).__name__} is not one of those that are offloaded.")
            room = self._room()
            if module is not self._ahead:
                self._give_up_ahead()
            try:
                if self._in_use is None:
                    self._states[module].resume()
                else:
                    swap(self._states[self._in_use], self._states[module])
            except BaseException:
                self._give_up_ahead()
                raise
            self._in_use, self._ahead = module, None
            self._came_after[self._recent] = module
            self._recent = (self._recent[1], module)
            coming = self._came_after.get(self._recent, module)
            if coming is not module and self._states[coming].stats().bytes <= room:
                self._ahead = coming
                try:
                    for part in self._states[coming]._parts:
                        part.ahead()
                except Error:  # it comes when it is used
                    self._give_up_ahead()

    def park(self) -> None:
        """Park the module in use, too. Blocks until its bytes are on the host."""
        with self._lock:
            if self._in_use is not None:
                self._states[self._in_use].park()
                self._in_use = None
            self._give_up_ahead()

    def remove(self) -> None:
        """Bring each module back to where it was before, and offload none any more.

        Raises OutOfMemory if those that were on the GPU do not fit there. They stay parked then; call it again.
        """
        with self._lock:
            while self._hooks:
                self._hooks.pop().remove()
            self._give_up_ahead()
            for module in sorted(self._states, key=lambda each: each not in self._from_host):
                module.__dict__.pop("_hf_hook", None)
                self._states[module].resume()
                if module in self._from_host:
                    move_(module, "cpu")
                del self._states[module]
                if module is self._in_use:
                    self._in_use = None

    def __enter__(self) -> Offload:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        in_use = "none" if self._in_use is None else f"a {type(self._in_use).__name__}"
        return f"<penstock.Offload: {in_use} of {len(self._states)} modules is on {self.device}>"

    def _give_up_ahead(self) -> None:
        for part in self._states[self._ahead]._parts if self._ahead is not None else ():
            part.empty()
        self._ahead = None

    def _room(self) -> int:
        """Bytes of the GPU beside the most that PyTorch has had in use, without what came ahead."""
        if self.device == "cpu":
            return sys.maxsize
        cuda = sys.modules["torch"].cuda
        most = cuda.max_memory_allocated(self.device)
        if most > self._seen_bytes:
            self._seen_bytes = most
            ahead = 0 if self._ahead is None else self._states[self._ahead].stats().bytes
            self._most_bytes = max(self._most_bytes, most - ahead)
        return cuda.memory_reserved(self.device) + cuda.mem_get_info(self.device)[0] - self._most_bytes

    def _add(self, module: Any, skip: Skip | None) -> None:
        if hasattr(module, "_hf_hook"):
            raise InvalidArgument(f"Another hook offloads this {type(module).__name__}: remove that first.")
        if all(tensor.device.type == "cpu" for tensor in module.parameters()):
            self._from_host.add(module)
            try:
                module.to(self.device)  # into memory of PyTorch's, which can be parked with any version of it
            except BaseException:
                module.to("cpu")  # what has moved already
                raise
        self._states[module] = Parked(module, skip=skip)
        self._states[module].park()
        self._hooks.append(module.register_forward_pre_hook(lambda one, _: self.use(one)))
        module._hf_hook = _DiffusersHook(self)


def offload(*modules: Any, device: Any = "cuda", skip: Skip | None = None) -> Offload:
    """Keep one of several modules on the GPU, and the others parked.

    The parts of a pipeline that do not fit on the GPU together take turns. When the `forward` of a module is called, it
    comes to the GPU and the one there leaves, in both directions of the link at once; see `swap`. It stays until
    another is called, so a loop over one module moves nothing. If the same two modules have come one after the other
    before, the bytes of the module that came after them follow while the second computes. This is done if the GPU has
    room for them beside the most memory that PyTorch has had in use, and with PyTorch from 2.12 on. At first all are
    parked. Inputs are yours to move. Blocks until all are parked. While a module is offloaded, do not move it by other
    means. After an error all are where they were.

    Args:
        modules: The modules. Those on the host are moved to `device` first, one after another.
        device: A GPU, as in `to_device`.
        skip: As in `park`. With "frozen", a module leaves without being copied after `module.requires_grad_(False)`.

    Raises:
        TypeError: It is something else than modules.
        InvalidArgument: A module is given twice or cannot be parked, such as one that shares a tensor with another.
        OutOfMemory, DeviceError: An end has no room, or the device fails.

    Examples:
        >>> with penstock.offload(encoder, decoder, device=gpu):
        ...     y = decoder(encoder(x))
    """
    return Offload(modules, device, skip)
