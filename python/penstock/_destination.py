"""Where data goes: decided here for Loader, feed, to_device and load_safetensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from . import _core
from ._engines import engine_for, engines_of, group_for, relays_of, resolve
from ._errors import InvalidArgument
from ._process_group import ProcessGroup


@dataclasses.dataclass(frozen=True)
class Relayed:
    """One device, to which others relay: the result of `relayed`, a `device` for Loader, feed and the transfers."""

    device: Any
    over: Any


def relayed(device: Any = "auto", over: Any = "auto") -> Relayed:
    """A device that is fed over the links of others, too: pass it as `device`. Raises nothing itself.

    Args:
        device: The device that receives.
        over: A list of other devices, or "auto" for all that reach the memory of `device`: see `relay` of `to_device`.

    Examples:
        >>> fast = penstock.relayed("host:1", over=["host:2"])
        >>> penstock.to_device(images, fast).shape
        (600, 1, 28, 28)
    """
    return Relayed(device, over if isinstance(over, str) or not isinstance(over, Iterable) else list(over))


class Destination:
    """One device, several that get the same, one to which others relay, or this process's device in a ProcessGroup.

    `device` says which; `group` and `relay` are other spellings: see `to_device`. Raises InvalidArgument for devices
    that cannot be in one group, and for two spellings at once.
    """

    def __init__(self, device: Any = "auto", group: Any = None, relay: Any = None):
        #: What `device` takes for the same destination.
        self.given = device = _spelled_once(device, group, relay)
        #: Those of a ProcessGroup, of which each has a device.
        self.processes: ProcessGroup | None = None
        #: True if there is one result for each device, in a list.
        self.together = isinstance(device, list)
        self._relays: list[_core.Engine] = []
        if isinstance(device, _OfProcess):
            self.processes, self.given = device.group, device.group
            self.specs = [resolve(device.device)]
        elif isinstance(device, list):
            group_for(engines_of("group", device))
            self.specs = [resolve(each) for each in device]
        elif isinstance(device, Relayed):
            self.specs = [resolve(device.device)]
            self._relays = _relays_of(engine_for(self.specs[0]), device.over)
        else:
            self.specs = [resolve(device)]
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


@dataclasses.dataclass(frozen=True)
class _OfProcess:
    device: Any
    group: ProcessGroup


def _spelled_once(device: Any, group: Any, relay: Any) -> Any:
    """A device, a list of devices, Relayed, or _OfProcess."""
    several = isinstance(device, (Relayed, ProcessGroup)) or _is_list(device)
    if several and (group is not None or relay is not None):
        raise InvalidArgument("`device` names all devices here. Leave out group and relay.")
    if isinstance(device, ProcessGroup):
        device, group = "auto", device
    if isinstance(group, ProcessGroup):
        group.refuse(False, relay)
        return _OfProcess(device, group)
    if group is not None:
        if relay is not None or str(device) != "auto":
            raise InvalidArgument("group names all devices that receive. Leave out device and relay.")
        return list(group) if _is_list(group) else engines_of("group", group)
    if relay is not None:
        return relayed(device, relay)
    return list(device) if _is_list(device) else device


def _is_list(device: Any) -> bool:
    return isinstance(device, Iterable) and not isinstance(device, str)


def _relays_of(engine: _core.Engine, over: Any) -> list[_core.Engine]:
    """Those of other devices, if one of them reaches the memory of `engine`."""
    others = relays_of(engine, over)
    if others:
        group_for([engine, *others])  # warns of devices that cannot relay
    return others if any(other.reaches(engine) for other in others) else []
