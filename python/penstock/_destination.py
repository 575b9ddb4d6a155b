"""Where data goes: decided here for Loader, feed, to_device and load_safetensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from . import _core
from ._engines import engine_for, group_for, neighbours_of, resolve
from ._errors import InvalidArgument
from ._process_group import ProcessGroup


@dataclasses.dataclass(frozen=True)
class Relayed:
    """One device, to which others relay: the result of `relayed`, a `device` for Loader, feed and the transfers."""

    device: Any
    over: Any


def relayed(device: Any = "auto", over: Any = "auto") -> Relayed:
    """A device that is fed over the links of others, too: pass it as `device`.

    `over` is a list of other devices, or "auto" for all that reach the memory of `device`: of the GPUs that this
    process sees, or of the host devices that it has open. "auto" opens all GPUs that this process sees, which costs
    some hundred MB of memory on each. They may be those of other processes of torchrun, which do nothing.

    The others pull parts of the bytes into buffers of their own, at most 4 chunks of some MiB each, and push them on. A
    stored profile of the group may say other chunks, at most 8 of 16 MiB. The less room their links have, the less they
    carry. Nests of less than 1 MiB are not relayed. A neighbour's link is the neighbour's, so nothing is relayed
    unless this is given.
    """
    if over != "auto":
        if not _is_list(over):
            raise InvalidArgument(f"over is a list of devices, such as ['cuda:0', 'cuda:1'], or 'auto', not {over!r}.")
        over = list(over)
    return Relayed(device, over)


class Destination:
    """One device, several that get the same, one to which others relay, or this process's device in a ProcessGroup.

    `device` says which: see `to_device`. Raises InvalidArgument for devices that cannot be in one group.
    """

    def __init__(self, device: Any = "auto"):
        #: What `device` takes for the same destination.
        self.given = device = list(device) if _is_list(device) else device
        #: Those of a ProcessGroup, of which each has a device.
        self.processes: ProcessGroup | None = None
        #: True if there is one result for each device, in a list.
        self.together = isinstance(device, list)
        self._relays: list[_core.Engine] = []
        if isinstance(device, ProcessGroup):
            self.processes = device
            self.specs = [resolve(device.device)]
        elif isinstance(device, list):
            group_for([engine_for(each) for each in device])
            self.specs = [resolve(each) for each in device]
        elif isinstance(device, Relayed):
            self.specs = [resolve(device.device)]
            self._relays = _relays_of(engine_for(self.specs[0]), device.over)
        else:
            self.specs = [resolve(device)]
        engine_for(self.specs[0])  # a device that cannot be opened is refused here
        self.name = " and ".join(self.specs)

    @property
    def is_one_device(self) -> bool:
        """True if it is one device, over its own link."""
        return self.processes is None and not self.together and not self._relays

    # Looked up each time: in a forked process, and in a worker of a DataLoader, that is an error.
    @property
    def engine(self) -> _core.Engine:
        """The first device's, which has the account."""
        return engine_for(self.specs[0])

    @property
    def engines(self) -> list[_core.Engine]:
        """Of the devices that receive."""
        return [engine_for(spec) for spec in self.specs]

    @property
    def members(self) -> list[_core.Engine]:
        """Of the devices whose links carry the data."""
        return [*self.engines, *self._relays]

    @property
    def group(self) -> _core.Group | None:
        """What sends over several links of this process; None for one."""
        return group_for(self.members) if self.together or self._relays else None

    def describe_links(self) -> list[str]:
        """How batches that are sent together go, and what each link has carried. Only if there is a group."""
        group: Any = self.group
        carried = zip((engine.spec for engine in self.members), group.carried(), strict=True)
        return [
            "batches of 1 MiB and more go once over the links of all devices that reach each other, smaller ones over "
            "each",
            "links: carried so far, with all else that was sent to these devices together, by "
            + ", ".join(f"{spec} {count} bytes" for spec, count in carried),
        ]

    @property
    def native(self) -> _core.Destination:
        if self.processes is not None:
            return self.processes.place(self.engine)
        group = self.group
        return (
            _core.Destination.device(self.engine)
            if group is None
            else _core.Destination.group(group, not self.together)
        )


def _is_list(device: Any) -> bool:
    return isinstance(device, Iterable) and not isinstance(device, str)


def _relays_of(engine: _core.Engine, over: Any) -> list[_core.Engine]:
    """Those of other devices, if one of them reaches the memory of `engine`."""
    others = neighbours_of(engine) if over == "auto" else [engine_for(device) for device in over]
    if others:
        group_for([engine, *others])  # warns of devices that cannot relay
    return others if any(other.reaches(engine) for other in others) else []
