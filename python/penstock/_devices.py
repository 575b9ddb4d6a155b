"""The devices of this machine."""

from __future__ import annotations

from . import _core


def devices() -> list[_core.DeviceInfo]:
    """The devices that `device=` may name, GPUs first, then the host. Opens none of them, and raises nothing.

    Examples:
        >>> penstock.devices()[-1].spec
        'host'
    """
    return _core.inventory()[0]
