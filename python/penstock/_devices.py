"""The devices of this machine."""

from __future__ import annotations

from . import _core


def devices() -> list[_core.DeviceInfo]:
    """The devices that `device=` may name, GPUs first, then the host. Opens none of them."""
    return _core.inventory()[0]


def missing_devices() -> list[str]:
    """A sentence for each kind of device that is missing: why, and what would help."""
    return _core.inventory()[1]
