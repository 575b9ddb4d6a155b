"""vLLM's sleep mode, with the copies of `park`: `vllm serve --enable-sleep-mode --sleep-mode-backend penstock`."""

from __future__ import annotations

from typing import Any

from vllm.device_allocator import get_mem_allocator_instance
from vllm.device_allocator.sleep_mode_backend import CuMemBackend

from .parking import Parked
from .parts import Region

_WEIGHTS = "weights"


class _Allocation:
    """A piece of memory of vLLM's allocator, which itself gives the pages back, and takes others."""

    def __init__(self, address: int, data: Any) -> None:
        self.address, self.data = address, data
        self.gpu, self.nbytes = data.handle[:2]

    def is_free(self) -> bool:
        return get_mem_allocator_instance().pointer_to_data.get(self.address) is not self.data

    def drop_pages(self) -> None:
        pass

    def take_pages(self) -> None:
        pass


class PenstockBackend(CuMemBackend):
    """Weights go to pinned memory of penstock's, which stays for the next sleep. All else is as vLLM's own does it."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[int, _Allocation] = {}
        self._parked = Parked(Region(self._weights))

    def suspend(self, level: int = 1) -> None:
        if level == 1:
            self._parked.park()
        super().suspend(2)  # keeps no bytes

    def resume(self, tags: list[str] | None = None) -> None:
        super().resume(tags)
        if tags is None or _WEIGHTS in tags:
            self._parked.resume()

    @classmethod
    def is_supported(cls) -> bool:
        from vllm.platforms import current_platform

        return current_platform.is_cuda()

    def _weights(self) -> list[_Allocation]:
        """The same objects for memory that was there before."""
        for address, data in get_mem_allocator_instance().pointer_to_data.items():
            known = self._known.get(address)
            if data.tag == _WEIGHTS and (known is None or known.data is not data):
                self._known[address] = _Allocation(address, data)
        self._known = {address: one for address, one in self._known.items() if not one.is_free()}
        return list(self._known.values())
