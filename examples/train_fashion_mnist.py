#!/usr/bin/env python3
"""Trains a small convolutional net on Fashion-MNIST, fed in four ways, and says where the time went.

    plain       for x, y in loader: x.to(device)
    advised     pin_memory=True, x.to(device, non_blocking=True)
    feed        for x, y in penstock.feed(loader, device)
    Loader      for x, y in penstock.Loader((images, labels), ..., device=device)

The first three see the same batches in the same order and reach the same accuracy; the last has an order of its own.
The data is Debian's package dataset-fashion-mnist (4 files in IDX format), or any folder with files of those names.
"""

from __future__ import annotations

import argparse
import gzip
import pathlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import penstock

try:
    from tqdm import tqdm
except ImportError:

    def tqdm(batches, **_):
        return batches


def read_idx(path: pathlib.Path) -> np.ndarray:
    with gzip.open(path) as file:
        data = file.read()
    axes = data[3]
    shape = np.frombuffer(data, ">u4", axes, offset=4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * axes).reshape(shape)


def load(folder: pathlib.Path, split: str, limit: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (n x 1 x 28 x 28, uint8) and labels (n, int64)."""
    images = read_idx(folder / f"{split}-images-idx3-ubyte.gz")[:limit, None]
    labels = read_idx(folder / f"{split}-labels-idx1-ubyte.gz")[:limit].astype(np.int64)
    return torch.from_numpy(images.copy()), torch.from_numpy(labels)


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


class Clock:
    """Marks in the order of the training's work: on the GPU's stream if there is a GPU, otherwise on the host."""

    def __init__(self, device: torch.device):
        self.cuda = device.type == "cuda"
        self.marks: list = []

    def mark(self) -> None:
        if self.cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.marks.append(event)
        else:
            self.marks.append(time.perf_counter())

    def seconds(self, first: int, second: int, step: int) -> float:
        """Sum over the spans between marks `first` and `second` of each `step`."""
        pairs = zip(self.marks[first::step], self.marks[second::step], strict=False)
        if self.cuda:
            torch.cuda.synchronize()
            return sum(a.elapsed_time(b) for a, b in pairs) / 1e3
        return sum(b - a for a, b in pairs)


@dataclass
class Result:
    way: str
    total: float
    data: float
    transfer: float
    compute: float
    accuracy: float


def batches_of(way: str, args: argparse.Namespace, data, device: torch.device) -> Iterator:
    """The batches of one way, and whether they still have to be moved."""
    order = torch.Generator().manual_seed(args.seed)
    loader = DataLoader(
        TensorDataset(*data),
        batch_size=args.batch_size,
        shuffle=True,
        generator=order,
        num_workers=args.workers,
        pin_memory=way == "advised" and device.type == "cuda",
    )
    target = str(device) if device.type == "cuda" else "host"
    if way == "feed":
        return penstock.feed(loader, device=target)
    if way == "Loader":
        return penstock.Loader(data, batch_size=args.batch_size, shuffle=True, seed=args.seed, device=target)
    return loader


def train(way: str, args: argparse.Namespace, data, test, device: torch.device) -> Result:
    torch.manual_seed(args.seed)
    model = make_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    batches = batches_of(way, args, data, device)
    clock = Clock(device)
    begin = time.perf_counter()
    for epoch in range(args.epochs):
        running_loss = torch.zeros((), device=device)
        right = torch.zeros((), device=device)
        seen = 0
        bar = tqdm(batches, desc=f"{way}, epoch {epoch + 1}", disable=args.quiet)
        clock.mark()
        for x, y in bar:
            clock.mark()
            if way in ("plain", "advised"):
                x = x.to(device, non_blocking=way == "advised")
                y = y.to(device, non_blocking=way == "advised")
            clock.mark()
            logits = model(x.float().div(255))
            l2 = sum(weights.square().sum() for weights in model.parameters())
            loss = nn.functional.cross_entropy(logits, y) + 1e-4 * l2
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            running_loss += loss.detach() * len(y)
            right += (logits.argmax(1) == y).sum()
            seen += len(y)
            clock.mark()
            # A mark for the next batch's wait; an epoch begins with one.
            clock.mark()
        clock.marks.pop()
        if not args.quiet:
            print(f"{way}: epoch {epoch + 1}, loss {running_loss / seen:.4f}, accuracy {right / seen:.2%}")
    if device.type == "cuda":
        torch.cuda.synchronize()
    total = time.perf_counter() - begin
    return Result(
        way,
        total,
        data=clock.seconds(0, 1, 4),
        transfer=clock.seconds(1, 2, 4),
        compute=clock.seconds(2, 3, 4),
        accuracy=evaluate(model, test, device),
    )


@torch.no_grad()
def evaluate(model: nn.Module, test, device: torch.device) -> float:
    images, labels = test
    right = 0
    for x, y in zip(images.split(2000), labels.split(2000), strict=True):
        right += int((model(x.to(device).float().div(255)).argmax(1).cpu() == y).sum())
    return right / len(labels)


def main() -> list[Result]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path("/usr/share/datasets/fashion-mnist"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--workers", type=int, default=0, help="worker processes of DataLoader")
    parser.add_argument("--limit", type=int, help="train on the first so many images only")
    parser.add_argument("--ways", nargs="+", default=["plain", "advised", "feed", "Loader"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quiet", action="store_true", help="print the table alone")
    args = parser.parse_args()

    device = torch.device(args.device)
    data = load(args.data, "train", args.limit)
    test = load(args.data, "t10k", args.limit)
    warm_up = argparse.Namespace(**{**vars(args), "epochs": 1, "quiet": True})
    small = tuple(field[: 4 * args.batch_size] for field in data)
    results = []
    for way in args.ways:
        train(way, warm_up, small, tuple(field[:100] for field in test), device)
        results.append(train(way, args, data, test, device))

    print(f"\n{len(data[0])} images, {args.epochs} epochs, batches of {args.batch_size}, on {device}")
    print(f"{'way':<10}{'total':>10}{'wait':>10}{'transfer':>10}{'compute':>10}{'accuracy':>10}")
    for r in results:
        print(f"{r.way:<10}{r.total:>9.2f}s{r.data:>9.2f}s{r.transfer:>9.2f}s{r.compute:>9.2f}s{r.accuracy:>10.2%}")
    print(
        "wait: until a batch is there, with the transfer where penstock does it; transfer: .to(); both and compute as "
        + ("the GPU's stream saw them" if device.type == "cuda" else "the host saw them")
    )
    return results


if __name__ == "__main__":
    main()
