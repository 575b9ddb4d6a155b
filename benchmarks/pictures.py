#!/usr/bin/env python3
"""Images per second of a folder of JPEGs: as programs read it with a DataLoader, and through penstock.

    pictures.py --device cuda --json pictures.json > pictures.md
    pictures.py --device cuda --train resnet50 > training.md

Makes the pictures itself, unless FOLDER is given: 500x375, about 100 KB each, of smooth fields and noise. Each way
reads them shuffled with RandomResizedCrop(224) and a flip, and delivers normalised float32 to the device. Each runs
for `--warm-up` seconds that do not count, and then for `--seconds`. The ways take turns for several rounds, and
medians count. With `--train MODEL`, each batch is a step of training, in bfloat16, and one more way trains on a batch
that lies on the device already. The table goes to standard output as Markdown, progress to standard error.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import io
import itertools
import json
import os
import pathlib
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import io as torchvision_io
from torchvision import models
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import penstock
from penstock._loader.pictures import nvjpeg_of_wheels

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZE = 224


def picture(random: numpy.random.Generator, width: int, height: int) -> bytes:
    """A JPEG of smooth fields, with noise that makes it as large as photographs of its size are."""
    coarse = random.integers(0, 256, (8, 10, 3), dtype=numpy.uint8)
    smooth = numpy.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC), numpy.float32)
    noise = random.normal(0, 20, (height, width, 1)).astype(numpy.float32)
    pixels = numpy.clip(smooth + noise, 0, 255).astype(numpy.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=90)
    return out.getvalue()


def make_folder(folder: pathlib.Path, count: int, width: int, height: int) -> None:
    """As many pictures in 10 classes. Few are made, and written again and again: encoding them takes long."""
    random = numpy.random.default_rng(0)
    made = [picture(random, width, height) for _ in range(min(count, 200))]
    for i in range(count):
        path = folder / f"class{i % 10}" / f"{i:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(made[i % len(made)])


def with_pillow(folder: str) -> Dataset:
    """As the example of PyTorch does."""
    from torchvision import transforms

    steps = [
        transforms.RandomResizedCrop(SIZE),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(MEAN, STD),
    ]
    return ImageFolder(folder, transforms.Compose(steps))


class WithTorchvision(Dataset):
    """decode_jpeg, and transforms of tensors of uint8."""

    def __init__(self, folder: str):
        self.samples = ImageFolder(folder).samples
        steps = [
            v2.RandomResizedCrop(SIZE, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
        self.transform = v2.Compose(steps)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, target = self.samples[index]
        image = torchvision_io.decode_jpeg(torchvision_io.read_file(path), torchvision_io.ImageReadMode.RGB)
        return self.transform(image), target


class Encoded(Dataset):
    """The bytes of the files, and their labels."""

    def __init__(self, folder: str):
        self.samples = ImageFolder(folder).samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, target = self.samples[index]
        # read_file maps the file, and a worker cannot send a mapped file.
        return torch.from_numpy(numpy.fromfile(path, numpy.uint8)), target


class DecodedOnGpu:
    """torchvision's batched decode_jpeg, which uses nvJPEG, and transforms of each picture there."""

    def __init__(self, encoded: DataLoader, device: str):
        self.encoded, self.device = encoded, device
        self.cropped = v2.Compose([v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()])
        self.normalised = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])

    def __iter__(self) -> Any:
        for files, labels in self.encoded:
            images = torchvision_io.decode_jpeg(files, torchvision_io.ImageReadMode.RGB, device=self.device)
            batch = torch.stack([self.cropped(image) for image in images])
            yield self.normalised(batch), labels.to(self.device, non_blocking=True)


class Nvjpeg(ctypes.Structure):
    """nvJPEG's description of an image in memory."""

    _fields_ = (("channel", ctypes.c_void_p * 4), ("pitch", ctypes.c_size_t * 4))


class RawNvjpeg:
    """nvJPEG alone, on one thread: decodes batches of whole pictures in memory, without crops, one after the other."""

    HARDWARE, KERNELS = 3, 2

    def __init__(self, folder: str, device: str, batch: int, backend: int):
        self.batch = batch
        paths = [path for path, _ in ImageFolder(folder).samples[: 8 * batch]]
        self.files = [pathlib.Path(path).read_bytes() for path in paths]
        self.sizes = [Image.open(path).size for path in paths]
        largest = max(3 * width * height for width, height in self.sizes)
        self.pixels = torch.empty(batch, largest, dtype=torch.uint8, device=device)
        libraries = [*nvjpeg_of_wheels(), "libnvjpeg.so.13", "libnvjpeg.so.12"]
        self.library = next(filter(None, map(self.opened, libraries)))
        self.handle, self.state = ctypes.c_void_p(), ctypes.c_void_p()
        create, rgb = self.library.nvjpegCreateEx, 5
        if create(backend, None, None, 0, ctypes.byref(self.handle)) != 0:
            raise RuntimeError(f"nvJPEG has no backend {backend} on this GPU: leave this way out by --only")
        self.check(self.library.nvjpegJpegStateCreate(self.handle, ctypes.byref(self.state)))
        self.check(self.library.nvjpegDecodeBatchedInitialize(self.handle, self.state, batch, 4, rgb))

    def __iter__(self) -> Any:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        for first in range(0, len(self.files) - self.batch + 1, self.batch):
            files = self.files[first : first + self.batch]
            images = (Nvjpeg * self.batch)()
            for image, row, (width, _) in zip(images, self.pixels, self.sizes[first:], strict=False):
                image.channel[0], image.pitch[0] = row.data_ptr(), 3 * width
            data = (ctypes.c_char_p * self.batch)(*files)
            lengths = (ctypes.c_size_t * self.batch)(*map(len, files))
            self.check(self.library.nvjpegDecodeBatched(self.handle, self.state, data, lengths, images, stream))
            torch.cuda.synchronize()
            yield self.pixels, None

    @staticmethod
    def opened(path: str) -> ctypes.CDLL | None:
        try:
            return ctypes.CDLL(path)
        except OSError:
            return None

    @staticmethod
    def check(status: int) -> None:
        if status != 0:
            raise RuntimeError(f"nvJPEG returned status {status}")


def files_and_labels(samples: list[tuple[torch.Tensor, int]]) -> tuple[list[torch.Tensor], torch.Tensor]:
    files, labels = zip(*samples, strict=True)
    return list(files), torch.tensor(labels)


class Ways:
    """The loaders that are compared, each made when it is its turn."""

    def __init__(self, folder: str, device: str, batch: int, workers: int, trains: bool):
        self.folder, self.device, self.batch, self.workers = folder, device, batch, workers
        self.makers: dict[str, Callable[[], Iterable[Any]]] = {
            "ImageFolder, Pillow": lambda: self.moved(self.torch_loader(with_pillow(folder))),
            "torchvision decode_jpeg, v2": lambda: self.moved(self.torch_loader(WithTorchvision(folder))),
            "penstock.feed(pictures=True)": lambda: penstock.feed(
                self.torch_loader(with_pillow(folder)), device, pictures=True
            ),
            "penstock.Pictures": self.pictures,
            "penstock.Pictures, decoded before": self.cached_pictures,
        }
        if device.startswith("cuda"):
            encoded = functools.partial(self.torch_loader, Encoded(folder), collate_fn=files_and_labels)
            self.makers["torchvision decode_jpeg on the GPU"] = lambda: DecodedOnGpu(encoded(), device)
            self.makers["penstock.Pictures, decoded on the GPU"] = lambda: self.pictures(decoder="device")
            if not trains:
                for name, backend in (("engines", RawNvjpeg.HARDWARE), ("kernels", RawNvjpeg.KERNELS)):
                    alone = functools.partial(RawNvjpeg, folder, device, batch, backend)
                    self.makers[f"nvJPEG alone, by its {name}"] = alone
        if trains:
            self.makers["a batch on the device already"] = self.batch_on_device

    def torch_loader(self, dataset: Dataset, **options: Any) -> DataLoader:
        return DataLoader(
            dataset,
            self.batch,
            shuffle=True,
            num_workers=self.workers,
            persistent_workers=self.workers > 0,
            pin_memory=self.device.startswith("cuda"),
            **options,
        )

    def moved(self, loader: DataLoader) -> Iterable[Any]:
        class Moved:
            def __iter__(_) -> Any:
                for batch in loader:
                    yield [part.to(self.device, non_blocking=True) for part in batch]

        return Moved()

    def pictures(self, **options: Any) -> penstock.Loader:
        scale = [1 / 255 / std for std in STD]
        shift = [-mean / std for mean, std in zip(MEAN, STD, strict=True)]
        source = penstock.Pictures(self.folder, SIZE, "imagenet", **options)
        device = "host" if self.device == "cpu" else self.device
        return penstock.Loader(source, self.batch, True, device, to="float32", scale=scale, shift=shift)

    def cached_pictures(self) -> penstock.Loader:
        """After the first epoch, in which all pictures are decoded."""
        loader = self.pictures(memory=16 << 30)
        for _ in loader:
            pass
        return loader

    def batch_on_device(self) -> Iterable[Any]:
        images = torch.randn(self.batch, 3, SIZE, SIZE, device=self.device)
        return itertools.repeat((images, torch.randint(10, (self.batch,), device=self.device)))


class Training:
    """A step of SGD on each batch, under autocast to bfloat16, with channels last."""

    def __init__(self, model: str, device: str):
        self.model = models.get_model(model).to(device, memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        images, labels = torch.as_tensor(images), torch.as_tensor(labels)
        with torch.autocast(images.device.type, torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(
                self.model(images.contiguous(memory_format=torch.channels_last)), labels
            )
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def run(loader: Iterable[Any], step: Callable[..., None], warm_up: float, seconds: float) -> dict[str, float]:
    """Images per second, and seconds to the first batch."""
    begin = time.perf_counter()
    first = counted = 0.0
    images = 0
    while True:
        for batch, labels in loader:
            first = first or time.perf_counter() - begin
            step(batch, labels)
            now = time.perf_counter()
            if counted:
                images += len(batch)
                if now - counted >= seconds:
                    if batch.device.type == "cuda":
                        torch.cuda.synchronize()
                    return {"rate": images / (time.perf_counter() - counted), "first_batch_s": first}
            elif now - begin >= warm_up:
                if batch.device.type == "cuda":
                    torch.cuda.synchronize()
                counted = time.perf_counter()


def table(rows: dict[str, dict[str, float]], processors: int) -> str:
    lines = [f"| way | images/s | a core, of {processors} | first batch, s |", "| --- | --- | --- | --- |"]
    for name, row in rows.items():
        rate = row["rate"]
        lines.append(f"| {name} | {rate:,.0f} | {rate / processors:,.0f} | {row['first_batch_s']:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", help="of pictures, with a folder for each class")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="of the DataLoaders")
    parser.add_argument("--count", type=int, default=5000, help="pictures to make")
    parser.add_argument("--width", type=int, default=500)
    parser.add_argument("--height", type=int, default=375)
    parser.add_argument("--warm-up", type=float, default=4.0, metavar="SECONDS")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="ways whose names have one of these")
    parser.add_argument("--train", metavar="MODEL", help="of torchvision, on each batch: resnet50")
    parser.add_argument("--json", help="write all figures here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-pictures-") as made:
        if arguments.folder is None:
            make_folder(pathlib.Path(made), arguments.count, arguments.width, arguments.height)
        folder = arguments.folder or made
        ways = Ways(folder, arguments.device, arguments.batch, arguments.workers, bool(arguments.train))
        names = [name for name in ways.makers if not arguments.only or any(text in name for text in arguments.only)]
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        accounts: dict[str, str] = {}
        step = Training(arguments.train, arguments.device) if arguments.train else lambda *batch: None
        for round_number in range(arguments.rounds):
            for name in names:
                loader = ways.makers[name]()
                runs[name].append(run(loader, step, arguments.warm_up, arguments.seconds))
                print(f"round {round_number + 1}: {name}: {runs[name][-1]}", file=sys.stderr)
                if hasattr(loader, "stats"):
                    accounts[name] = str(loader.stats())
                    print(accounts[name], file=sys.stderr)
                del loader  # with its workers, before the next way begins
    rows = {
        name: {figure: statistics.median(each[figure] for each in done) for figure in done[0]}
        for name, done in runs.items()
    }
    processors = len(os.sched_getaffinity(0))
    print(table(rows, processors))
    if arguments.json:
        machine = {"processors": processors, "machine": platform.machine(), "device": arguments.device}
        if arguments.device.startswith("cuda"):
            machine["gpu"] = torch.cuda.get_device_name()
        figures = {"machine": machine, "options": vars(arguments), "ways": rows, "runs": runs, "accounts": accounts}
        pathlib.Path(arguments.json).write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
