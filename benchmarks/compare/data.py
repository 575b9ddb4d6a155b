"""The datasets that are fed, and the check that batches hold their bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from .setting import Setting, WrongBytes


@dataclass
class Samples:
    """An in-memory dataset: `x` on the host, and for each sample its number. Batches are `(x, number)`."""

    name: str
    x: torch.Tensor
    batch_size: int
    deliver: torch.dtype  #: what consumers want

    def __post_init__(self) -> None:
        self.number = torch.arange(len(self.x))

    def __len__(self) -> int:
        return len(self.x)

    @property
    def sample_bytes(self) -> int:
        return self.x[0].nbytes

    @property
    def widens(self) -> bool:
        return self.deliver != self.x.dtype

    def figures(self, samples_per_second: float) -> dict[str, Any]:
        return {
            "samples_per_second": samples_per_second,
            "stored_gbps": samples_per_second * self.sample_bytes / 1e9,
        }


class Indexed(torch.utils.data.Dataset):
    """What users write first: one sample at a time."""

    def __init__(self, samples: Samples):
        self.x = samples.x
        self.number = samples.number

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index], self.number[index]


class Fancy(Indexed):
    """What users write if they know `__getitems__`: a whole batch at a time."""

    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[indices], self.number[indices]


class Columns(torch.utils.data.Dataset):
    """Rows of named columns. penstock reads the columns themselves."""

    def __init__(self, columns: dict[str, torch.Tensor]):
        self.columns = columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {name: column[index] for name, column in self.columns.items()}

    @property
    def __penstock_tensors__(self) -> dict[str, torch.Tensor]:
        return self.columns


def as_it_is(batch: Any) -> Any:
    return batch


def random_bytes(*shape: int) -> torch.Tensor:
    """Random uint8, eight at a time."""
    count = torch.Size(shape).numel()
    return torch.empty((count + 7) // 8, dtype=torch.int64).random_().view(torch.uint8)[:count].view(shape)


def images(count: int, deliver: torch.dtype, x: torch.Tensor | None = None) -> Samples:
    name = "images" if deliver == torch.uint8 else "images to float32"
    return Samples(name, random_bytes(count, 3, 224, 224) if x is None else x, 256, deliver)


def small(count: int) -> Samples:
    return Samples("small samples", torch.rand(count, 64), 4096, torch.float32)


def verify(batches: Iterable, samples: Samples, reference: torch.Tensor, setting: Setting, whole: bool = True) -> None:
    """Compares one epoch on the device with the dataset, which lies there as `reference`. Raises WrongBytes.

    `whole`: each sample comes once. Otherwise at most once, since a last batch that is not full may be left out.

    On a GPU each comparison runs late, behind a kernel that only waits: memory that is reused too early shows.
    """
    target = setting.target
    seen = torch.zeros(len(samples), dtype=torch.int32, device=target)
    wrong = torch.zeros((), dtype=torch.int64, device=target)
    cycles = min(300_000, 100_000_000 // max(1, len(samples) // samples.batch_size))
    for x, number in batches:
        if setting.on_gpu:
            torch.cuda._sleep(cycles)
        x, number = x.to(target), number.to(target).flatten().long()
        if x.dtype != samples.deliver:
            raise WrongBytes(f"delivered {x.dtype}, not {samples.deliver}")
        wrong += (x != reference.index_select(0, number).to(samples.deliver)).any()
        seen.index_add_(0, number, torch.ones_like(number, dtype=torch.int32))
    if int(wrong):
        raise WrongBytes(f"{int(wrong)} batches hold other samples than they say")
    missing = len(samples) - int(seen.sum())
    if int(seen.max()) != 1 or missing > (0 if whole else samples.batch_size - 1):
        raise WrongBytes(f"samples came {int(seen.min())} to {int(seen.max())} times in one epoch")
