"""Whole training steps: samples a second, beside the same steps whose batches are on the device already.

Images train a ResNet in bfloat16, vectors a multilayer perceptron, and a table of columns embeddings with a perceptron.
The label of a sample follows from its number, so that each batch can be compared with the dataset.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset, TensorDataset

from . import peers
from .data import Columns, Samples, verify
from .feeding import Throttle, endless
from .loaders import MovedAsItIs, Resident, loader_of, ours_loader
from .setting import OURS, Contender, Result, Setting, attempt, opened

COLUMNS = 28
SETTLE = 10  # steps before a run is timed
TURNS = 4  # of a contender and of compute alone


@dataclass
class Work:
    """`step(x, number)` trains on a batch; for a table, `x` is a dict of columns."""

    samples: Samples
    step: Callable[[Any, torch.Tensor], None]
    is_table: bool = False


def table(samples: Samples) -> Columns:
    """The columns of `samples`, and the samples' numbers."""
    columns = {f"c{k}": samples.x[:, k].contiguous() for k in range(samples.x.shape[1])}
    return Columns(columns | {"number": samples.number})


def split(batch: Any) -> tuple[Any, torch.Tensor]:
    """What the model reads, and the samples' numbers."""
    if isinstance(batch, dict):
        return {name: column for name, column in batch.items() if name != "number"}, batch["number"]
    return batch[0], batch[1]


class Stacked:
    """Batches of a table as batches of one tensor, to compare them."""

    def __init__(self, batches: Iterable):
        self.batches = batches

    def __iter__(self) -> Iterator:
        for batch in self.batches:
            columns, number = split(batch)
            yield torch.stack(list(columns.values()), 1), number


def dataset_of(work: Work) -> Dataset:
    return table(work.samples) if work.is_table else TensorDataset(work.samples.x, work.samples.number)


def contenders(work: Work) -> list[Contender]:
    size = work.samples.batch_size

    def data_loader(_: Any, setting: Setting, workers: int) -> Any:
        return MovedAsItIs(loader_of(dataset_of(work), size, workers, setting.on_gpu, drop_last=True), setting)

    def fed(**options: Any) -> Callable:
        def make(_: Any, setting: Setting, workers: int | None) -> Any:
            import penstock

            loader = loader_of(dataset_of(work), size, workers or 0, drop_last=True)
            return penstock.feed(loader, device=setting.device, **options)

        return make

    def native_loader(_: Any, setting: Setting, option: Any) -> Any:
        import penstock

        if not work.is_table:
            return ours_loader(work.samples, setting, option)
        return penstock.Loader(table(work.samples).columns, batch_size=size, shuffle=True, device=setting.device)

    workers = {"options": lambda setting: setting.workers}
    theirs = [Contender("DataLoader, best of N workers", data_loader, **workers)]
    if not work.is_table:
        theirs += [contender for contender in peers.contenders(work.samples) if contender.name == "SPDL"]
    return [
        *theirs,
        Contender("penstock.feed, workers", fed(native=False), **OURS, **workers),
        Contender("penstock.feed", fed(), **OURS),
        Contender("penstock.Loader", native_loader, **OURS),
    ]


def train(work: Work, batches: Iterable, setting: Setting, seconds: float) -> float:
    """Samples a second. The host runs some steps ahead, as a loop does that reads its loss now and then."""
    throttle = Throttle(setting, every=2)
    samples, begin = 0, 0.0
    for steps, batch in enumerate(endless(batches), 1):
        x, number = split(batch)
        work.step(x, number)
        samples += len(number)
        throttle()
        if steps == SETTLE:
            setting.synchronize()
            samples, begin = 0, time.perf_counter()
        elif steps > SETTLE + 2 and time.perf_counter() - begin > seconds:
            break
    setting.synchronize()
    return samples / (time.perf_counter() - begin)


def measure_with(work: Work, setting: Setting) -> Callable[[Contender, Result], None]:
    samples = work.samples
    reference = samples.x.to(setting.target)
    resident = Resident(dataset_of(work), samples.batch_size, setting)
    train(work, resident, setting, setting.seconds)  # compiles

    def measure(contender: Contender, result: Result) -> None:
        rates = {}
        options = contender.options(setting)
        for option in options if len(options) > 1 else ():
            with opened(contender, samples, setting, option) as batches:
                rates[option] = train(work, batches, setting, setting.seconds / 2)
        result.option = max(rates, key=lambda option: rates[option]) if rates else options[0]
        with opened(contender, samples, setting, result.option) as batches:
            # Loaders that drop the last samples are compared batch by batch only.
            verify(Stacked(batches) if work.is_table else batches, samples, reference, setting, whole=False)
            result.verified = True
            fed, alone = [], [train(work, resident, setting, setting.seconds / 2)]
            for _ in range(TURNS):
                fed.append(train(work, batches, setting, setting.seconds / 2))
                alone.append(train(work, resident, setting, setting.seconds / 2))
        # What the host's neighbours do changes within seconds, so each turn counts beside the two around it.
        shares = [2 * rate / sum(around) for rate, around in zip(fed, itertools.pairwise(alone), strict=True)]
        result.figures = {
            "samples_per_second": statistics.median(fed),
            "alone_samples_per_second": statistics.median(alone),
            "share_of_compute": statistics.median(shares),
            "shares": shares,
            "by_option": {str(option): rate for option, rate in rates.items()},
        }

    return measure


def compare(images: Samples, vectors: Samples, setting: Setting) -> Iterator[list[Result]]:
    """The results of each model, one after the other."""
    for make in (resnet("resnet18"), resnet("resnet50"), perceptron, recommender):
        try:
            work = make(images, vectors, setting)
        except ImportError as error:
            yield [Result(f"train {make.__name__}", "all", not_measured=f"not installed: {error.name}")]
            continue
        measure = measure_with(work, setting)
        yield [attempt(work.samples.name, contender, setting, measure) for contender in contenders(work)]


def named(name: str, samples: Samples, batch_size: int, quick: bool) -> Samples:
    batch_size = batch_size // 16 if quick else batch_size
    return Samples(f"train {name}, batch {batch_size}", samples.x, batch_size, samples.deliver)


def compiled(function: Callable, setting: Setting) -> Callable:
    return torch.compile(function) if setting.on_gpu and not setting.quick else function


def resnet(name: str) -> Callable:
    def make(images: Samples, _: Samples, setting: Setting) -> Work:
        import torchvision

        model = getattr(torchvision.models, name)().to(setting.target, memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)

        def loss_of(x: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
            x = x.to(torch.bfloat16).div(255).sub(0.5).contiguous(memory_format=torch.channels_last)
            with torch.autocast(setting.target.type, torch.bfloat16):
                return torch.nn.functional.cross_entropy(model(x), number % 1000)

        return Work(named(name, images, 256, setting.quick), stepper(compiled(loss_of, setting), optimizer))

    make.__name__ = name
    return make


def perceptron(_: Samples, vectors: Samples, setting: Setting) -> Work:
    hidden = 128 if setting.quick else 2048
    extents = [vectors.x.shape[1], hidden, hidden, hidden, 1000]
    layers = [part for a, b in itertools.pairwise(extents) for part in (torch.nn.Linear(a, b), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers[:-1]).to(setting.target)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=setting.on_gpu)

    def loss_of(x: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        with torch.autocast(setting.target.type, torch.bfloat16):
            return torch.nn.functional.cross_entropy(model(x), number % 1000)

    return Work(named("perceptron", vectors, 4096, setting.quick), stepper(compiled(loss_of, setting), optimizer))


def recommender(_: Samples, vectors: Samples, setting: Setting) -> Work:
    rows = 10_000 if setting.quick else 100_000
    table = Samples("table", torch.randint(0, rows, (len(vectors), COLUMNS)), 8192, torch.int64)
    samples = named(f"recommender of {COLUMNS} columns", table, 8192, setting.quick)
    embeddings = torch.nn.ModuleList(torch.nn.Embedding(rows, 16) for _ in range(COLUMNS)).to(setting.target)
    top = torch.nn.Sequential(torch.nn.Linear(16 * COLUMNS, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
    top = top.to(setting.target)
    optimizer = torch.optim.SGD([*embeddings.parameters(), *top.parameters()], 0.01)

    def loss_of(columns: dict[str, torch.Tensor], number: torch.Tensor) -> torch.Tensor:
        parts = [embed(column) for embed, column in zip(embeddings, columns.values(), strict=True)]
        wanted = (number % 2).float()
        return torch.nn.functional.binary_cross_entropy_with_logits(top(torch.cat(parts, 1)).squeeze(1), wanted)

    return Work(samples, stepper(compiled(loss_of, setting), optimizer), is_table=True)


def stepper(loss_of: Callable, optimizer: torch.optim.Optimizer) -> Callable:
    def step(x: Any, number: torch.Tensor) -> None:
        loss_of(x, number).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
