"""Where the batches of a feed go."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .. import _core
from .._engines import engine_for, engines_of, group_for, refuse_other_receivers, resolve
from .._process_group import ProcessGroup


class Receivers:
    """One device, this process's device in a ProcessGroup, or all devices of a group. Opens them. Raises
    InvalidArgument for devices that cannot be in one group."""

    def __init__(self, device: Any, group: Any = None):
        self.processes = group if isinstance(group, ProcessGroup) else None
        #: True if a batch is a list, with one batch for each device.
        self.together = group is not None and self.processes is None
        if self.together:
            refuse_other_receivers(device, None)
            devices = list(group) if isinstance(group, Iterable) and not isinstance(group, str) else group
            group_for(engines_of("group", devices))
            self.specs = [resolve(device) for device in devices]
        else:
            self.specs = [resolve(device)]
        self.name = " and ".join(self.specs)

    # Looked up each time: in a forked process, and in a worker of a DataLoader, that is an error.
    @property
    def engine(self) -> _core.Engine:
        """The first device's, which has the account."""
        return engine_for(self.specs[0])

    @property
    def engines(self) -> list[_core.Engine]:
        return [engine_for(spec) for spec in self.specs]

    @property
    def group(self) -> _core.Group:
        return group_for(self.engines)

    def describe_links(self) -> list[str]:
        """How batches that are sent together go, and what each link has carried."""
        carried = zip(self.specs, self.group.carried(), strict=True)
        return [
            "batches of 1 MiB and more go once over the links of all devices that reach each other, smaller ones over "
            "each",
            "links: carried so far, with all else that was sent to these devices together, by "
            + ", ".join(f"{spec} {count} bytes" for spec, count in carried),
        ]
