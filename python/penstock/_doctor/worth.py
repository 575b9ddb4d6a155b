"""worth: is the GPU worth it, with its transfers counted?"""

from __future__ import annotations

import copy
import html
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from .. import _core
from .._errors import InvalidArgument
from .._move.transfers import to_device


def worth(
    fn: Callable[..., Any],
    *inputs: Any,
    sizes: Iterable[int] | None = None,
    device: Any = "auto",
    repetitions: int = 7,
    seconds: float = 1.0,
) -> Worth:
    """Run a function on the CPU and on the GPU, and say when the GPU wins with its transfers counted.

    `fn(*inputs)` computes with PyTorch, on the device of its inputs; a `torch.nn.Module` is copied to the GPU for its
    runs. `inputs` are PyTorch tensors, NumPy arrays (they become tensors) and nests of them, on the host. It measures
    the CPU's time, the GPU's kernel time, and moving the inputs there and the results back, with pageable and with
    pinned memory. Each is the median of up to `repetitions` runs, or as many as fit `seconds`, after a warm-up. With
    `sizes`, inputs are cut or repeated along their first axis to each of these batch sizes.

    Returns a Worth: print it for a table and one sentence; `.plot()` draws the curve. Without a GPU it has only the
    CPU's times, and says what it could not measure. Raises InvalidArgument for sizes below 1, and ImportError without
    PyTorch. Exceptions of `fn` pass through.
    """
    try:
        import torch
    except ImportError as error:
        raise ImportError("penstock.worth needs PyTorch: pip install torch") from error
    if repetitions < 1:
        raise InvalidArgument(f"repetitions is 1 or more, not {repetitions!r}.")
    inputs = tuple(_map(_as_tensor, value) for value in inputs)
    wanted = [None] if sizes is None else sorted(set(sizes))
    if not wanted or any(size is not None and size < 1 for size in wanted):
        raise InvalidArgument("sizes are batch sizes, 1 or more.")
    gpu, missing = _gpu(device, torch)
    moved_fn = copy.deepcopy(fn).to(gpu) if gpu is not None and isinstance(fn, torch.nn.Module) else fn
    rows = []
    for size in wanted:
        batch = inputs if size is None else tuple(_map(lambda t, n=size: _resize(t, n), value) for value in inputs)
        row = Row(size=_rows_of(batch) if size is None else size)
        measure = _Measure(repetitions, seconds)
        result = fn(*batch)
        row.input_bytes = sum(t.nbytes for t in _leaves(batch))
        row.output_bytes = sum(t.nbytes for t in _leaves(result))
        row.cpu_seconds = measure(lambda b=batch: fn(*b))
        if gpu is not None:
            _measure_gpu(row, measure, moved_fn, batch, gpu, torch)
        rows.append(row)
    return Worth(rows, None if gpu is None else str(gpu), missing)


@dataclass
class Row:
    """The measurements of one batch size, in seconds. None if there was no GPU."""

    size: int = 0
    input_bytes: int = 0
    output_bytes: int = 0
    cpu_seconds: float = 0.0
    kernel_seconds: float | None = None
    h2d_pageable_seconds: float | None = None
    h2d_pinned_seconds: float | None = None
    d2h_pageable_seconds: float | None = None
    d2h_pinned_seconds: float | None = None

    def gpu_seconds(self, pinned: bool = True, uses: float = 1) -> float:
        """Seconds of one use, if inputs are moved once and used `uses` times, and each use's results come back."""
        h2d, d2h = (
            (self.h2d_pinned_seconds, self.d2h_pinned_seconds)
            if pinned
            else (self.h2d_pageable_seconds, self.d2h_pageable_seconds)
        )
        return (h2d or 0) / uses + (self.kernel_seconds or 0) + (d2h or 0)

    def reuses(self, pinned: bool = True) -> int | None:
        """The least uses of the same inputs with which the GPU wins; None if it never does."""
        gained = self.cpu_seconds - self.gpu_seconds(pinned, uses=math.inf)
        if gained <= 0:
            return None
        moved = (self.h2d_pinned_seconds if pinned else self.h2d_pageable_seconds) or 0
        return max(1, math.floor(moved / gained) + 1)


@dataclass
class Worth:
    """The answer of `worth`: a Row for each batch size."""

    rows: list[Row]
    device: str | None
    missing: list[str] = field(default_factory=list)

    def winning_size(self, pinned: bool = True) -> int | None:
        """The smallest measured batch size from which on the GPU wins at every size, with its transfers counted in each
        use. None if it does not win at the largest."""
        size = None
        for row in reversed(self.rows):
            if row.gpu_seconds(pinned) >= row.cpu_seconds:
                break
            size = row.size
        return size

    def sentence(self) -> str:
        """The answer in one sentence."""
        if self.device is None:
            return f"Only the CPU was measured. {' '.join(self.missing)}"
        last = self.rows[-1]
        if len(self.rows) > 1:
            size = self.winning_size()
            if size is not None:
                times = last.cpu_seconds / last.gpu_seconds()
                return (
                    f"With transfers counted, the GPU wins from batches of {size}; at {last.size} it is "
                    f"{times:.1f} times as fast as the CPU."
                )
        reuses = last.reuses()
        if reuses is None:
            return (
                "The GPU does not win, however often the inputs are used: its kernels and the way back take "
                f"{_time(last.gpu_seconds(uses=math.inf))}, the CPU {_time(last.cpu_seconds)}."
            )
        often = "already when they are used once" if reuses == 1 else f"from {reuses} uses of the same inputs on"
        return f"With transfers counted, the GPU wins {often} (batches of {last.size}, pinned memory)."

    def _table(self) -> list[list[str]]:
        head = [
            "batch",
            "CPU",
            "kernels",
            "H2D pageable",
            "H2D pinned",
            "D2H pageable",
            "D2H pinned",
            "GPU in all",
            "uses",
        ]
        lines = [head if self.device else head[:2]]
        for row in self.rows:
            line = [str(row.size), _time(row.cpu_seconds)]
            if self.device:
                parts = (
                    row.kernel_seconds,
                    row.h2d_pageable_seconds,
                    row.h2d_pinned_seconds,
                    row.d2h_pageable_seconds,
                    row.d2h_pinned_seconds,
                    row.gpu_seconds(),
                )
                line += [_time(part or 0) for part in parts]
                line.append(str(row.reuses() or "never"))
            lines.append(line)
        return lines

    def __str__(self) -> str:
        table = self._table()
        widths = [max(map(len, column)) + 2 for column in zip(*table, strict=True)]
        lines = ["".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in table]
        return "\n".join([*lines, self.sentence()])

    def _repr_html_(self) -> str:
        head, *lines = self._table()
        cells = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
        rows = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in line) + "</tr>" for line in lines)
        return f"<table><tr>{cells}</tr>{rows}</table><p>{html.escape(self.sentence())}</p>"

    def plot(self, axes: Any = None) -> Any:
        """Draw the time of one use over batch size; needs matplotlib. Returns the axes."""
        from .._plots import label_sizes, label_times, pyplot

        if axes is None:
            axes = pyplot().subplots(layout="constrained")[1]
        sizes = [row.size for row in self.rows]
        curves = [("CPU", "o-", [row.cpu_seconds for row in self.rows])]
        if self.device:
            curves += [
                ("GPU, kernels alone", "o--", [row.kernel_seconds or 0 for row in self.rows]),
                ("GPU, pinned transfers", "o-", [row.gpu_seconds(True) for row in self.rows]),
                ("GPU, pageable transfers", "o-", [row.gpu_seconds(False) for row in self.rows]),
            ]
        for label, style, seconds in curves:
            axes.loglog(sizes, seconds, style, label=label)
        label_sizes(axes, sizes)
        label_times(axes, [value for *_, seconds in curves for value in seconds], _time)
        axes.set_title("Is the GPU worth it? The time of one use")
        axes.set_xlabel("batch size")
        axes.set_ylabel("time")
        axes.grid(alpha=0.3)
        axes.legend()
        return axes


class _Measure:
    """Medians of repetitions within a time."""

    def __init__(self, repetitions: int, seconds: float):
        self.repetitions = repetitions
        self.seconds = seconds

    def __call__(self, action: Callable[[], Any], clock: Callable[[Callable], float] | None = None) -> float:
        action()
        taken = []
        end = time.perf_counter() + self.seconds
        while len(taken) < self.repetitions and (not taken or time.perf_counter() < end):
            taken.append(_wall(action) if clock is None else clock(action))
        return statistics.median(taken)


def _wall(action: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def _measure_gpu(row: Row, measure: _Measure, fn: Any, batch: Any, gpu: Any, torch: Any) -> None:
    def synchronized(action: Callable[[], Any]) -> float:
        torch.cuda.synchronize(gpu)
        begin = time.perf_counter()
        action()
        torch.cuda.synchronize(gpu)
        return time.perf_counter() - begin

    def on_stream(action: Callable[[], Any]) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        action()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    with torch.cuda.device(gpu):
        moved = to_device(batch, gpu)
        results = _leaves(fn(*moved))
        row.kernel_seconds = measure(lambda: fn(*moved), on_stream)
        sources = _leaves(batch)
        pinned = [tensor.detach().pin_memory() for tensor in sources]
        there = [torch.empty_like(tensor, device="cpu", pin_memory=True) for tensor in results]
        row.h2d_pageable_seconds = measure(lambda: [t.to(gpu) for t in sources], synchronized)
        row.h2d_pinned_seconds = measure(lambda: [t.to(gpu, non_blocking=True) for t in pinned], synchronized)
        row.d2h_pageable_seconds = measure(lambda: [t.cpu() for t in results], synchronized)
        row.d2h_pinned_seconds = measure(
            lambda: [to.copy_(t, non_blocking=True) for to, t in zip(there, results, strict=True)], synchronized
        )


def _gpu(device: Any, torch: Any) -> tuple[Any, list[str]]:
    """PyTorch's GPU, or None and the reasons."""
    name = str(device)
    if name in ("host", "cpu"):
        return None, [f"device={name!r} is not a GPU."]
    if torch.cuda.is_available():
        return torch.device("cuda" if name == "auto" else name), []
    reasons = list(_core.inventory()[1])
    if not reasons:
        reasons = ["This PyTorch was built without CUDA."]
    return None, ["Kernel time, H2D and D2H could not be measured.", *reasons]


def _as_tensor(value: Any) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return sys.modules["torch"].from_numpy(numpy.ascontiguousarray(value))
    return value


def _map(change: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _map(change, item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_map(change, item) for item in value)
    return change(value)


def _leaves(value: Any) -> list[Any]:
    leaves: list[Any] = []
    torch = sys.modules["torch"]
    _map(lambda item: leaves.append(item.detach()) if isinstance(item, torch.Tensor) else None, value)
    return leaves


def _resize(value: Any, size: int) -> Any:
    torch = sys.modules["torch"]
    if not isinstance(value, torch.Tensor) or value.ndim == 0 or len(value) == 0:
        return value
    times = -(-size // len(value))
    return value.repeat(times, *[1] * (value.ndim - 1))[:size].contiguous() if times > 1 else value[:size].contiguous()


def _rows_of(batch: Any) -> int:
    return next((len(leaf) for leaf in _leaves(batch) if leaf.ndim > 0), 1)


def _time(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.0f} ns"
