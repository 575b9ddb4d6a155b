"""Ways to move batches of an in-memory dataset to a GPU with other people's packages."""

from __future__ import annotations

import concurrent.futures
import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .data import Samples
from .loaders import data_loader
from .setting import Contender, Setting


def timm_prefetch(samples: Samples, setting: Setting, workers: int) -> Any:
    """timm converts and normalizes on the device; with this mean and deviation its images keep their values."""
    from timm.data.loader import PrefetchLoader

    return PrefetchLoader(
        data_loader(samples, workers, pin=True),
        mean=(0.0, 0.0, 0.0),
        std=(1 / 255, 1 / 255, 1 / 255),
        device=setting.target,
        img_dtype=samples.deliver,
    )


class Spdl:
    """Threads gather batches, one more thread transfers them."""

    def __init__(self, samples: Samples, threads: int):
        self.samples, self.threads = samples, threads

    def _gather(self, chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.samples.x.index_select(0, chosen), chosen

    def __iter__(self) -> Iterator:
        import spdl.io
        from spdl.pipeline import PipelineBuilder

        transfer = getattr(spdl.io, "transfer_tensor_h2d", None) or spdl.io.transfer_tensor
        order = torch.randperm(len(self.samples)).split(self.samples.batch_size)
        with concurrent.futures.ThreadPoolExecutor(1) as transferring:
            builder = PipelineBuilder().add_source(order).pipe(self._gather, concurrency=self.threads)
            pipeline = builder.pipe(transfer, executor=transferring).add_sink(2).build(num_threads=self.threads)
            with pipeline.auto_stop():
                for x, number in pipeline.get_iterator():
                    yield x.to(self.samples.deliver), number


class Dali:
    """DALI's pipeline behind an external source that gathers batches with NumPy."""

    def __init__(self, samples: Samples, setting: Setting, _: Any):
        from nvidia.dali import fn, pipeline_def, types
        from nvidia.dali.plugin.pytorch import DALIGenericIterator

        self.samples = samples
        kinds = {torch.uint8: types.UINT8, torch.float32: types.FLOAT}

        @pipeline_def(batch_size=samples.batch_size, num_threads=setting.cores, device_id=setting.target.index)
        def pipeline() -> tuple:
            x, number = fn.external_source(
                source=self._batches,
                num_outputs=2,
                batch=True,
                cycle="raise",
                dtype=[kinds[samples.x.dtype], types.INT64],
            )
            x = x.gpu()
            return (fn.cast(x, dtype=kinds[samples.deliver]) if samples.widens else x), number.gpu()

        built = pipeline()
        built.build()
        self.iterator = DALIGenericIterator([built], ["x", "number"], auto_reset=True)

    def _batches(self) -> Iterator:
        for chosen in torch.randperm(len(self.samples)).split(self.samples.batch_size):
            yield self.samples.x.index_select(0, chosen).numpy(), chosen[:, None].numpy()

    def __iter__(self) -> Iterator:
        for (batch,) in self.iterator:
            yield batch["x"], batch["number"].flatten()


def roomy_folder(wanted: int) -> str | None:
    """A folder in memory if that has room for so many bytes; None: the usual one for temporary files."""
    memory = pathlib.Path("/dev/shm")
    return str(memory) if memory.is_dir() and shutil.disk_usage(memory).free > 2 * wanted else None


def contenders(samples: Samples) -> list[Contender]:
    def several(setting: Setting) -> tuple:
        return setting.workers

    made: list[tuple[str, Callable, tuple[str, ...], Callable]] = [
        ("SPDL", lambda s, setting, n: Spdl(s, n), ("spdl.io", "spdl.pipeline"), lambda setting: (1, *setting.workers)),
        ("DALI, external source", Dali, ("nvidia.dali",), lambda setting: (None,)),
    ]
    if samples.x.ndim == 4 and samples.widens:
        made.insert(0, ("timm PrefetchLoader", timm_prefetch, ("timm",), several))
    return [Contender(name, make, needs, True, options) for name, make, needs, options in made]
