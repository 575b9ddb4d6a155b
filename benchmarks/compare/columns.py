"""Tables of narrow columns: microseconds for each shuffled batch, a dict with one tensor for each column."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

from .data import Columns, as_it_is
from .feeding import endless
from .loaders import MovedAsItIs, loader_of
from .setting import OURS, Contender, Result, Setting, WrongBytes, attempt, cost_of_next, opened

BATCH = 8192
SAMPLES = 1 << 17
MANY = 20_000_000  # rows of a long table
LARGEST = 50_000  # values that 16 bits hold
COLUMNS = (1, 28, 100, 400)

Table = dict[str, torch.Tensor]


class Fancy(Columns):
    """A table that gives a whole batch at a time."""

    def __getitems__(self, indices: list[int]) -> Table:
        chosen = torch.as_tensor(indices)
        return {name: column[chosen] for name, column in self.columns.items()}


def contenders(table: Table, batch: int) -> list[Contender]:
    def ours(residency: str = "none", **tuning: Any) -> Callable:
        def make(_: Any, setting: Setting, __: Any) -> Any:
            import penstock

            options = {"residency": residency, "tuning": penstock.Tuning(**tuning)}
            return penstock.Loader(table, batch, shuffle=True, drop_last=True, device=setting.device, **options)

        return make

    def fancy(_: Any, setting: Setting, __: Any) -> Any:
        return MovedAsItIs(
            loader_of(Fancy(table), batch, 0, setting.on_gpu, drop_last=True, collate_fn=as_it_is), setting
        )

    def fed(_: Any, setting: Setting, __: Any) -> Any:
        import penstock

        return penstock.feed(loader_of(Columns(table), batch, 0, drop_last=True), device=setting.device)

    return [
        Contender("DataLoader with `__getitems__`", fancy),
        Contender("penstock.feed(DataLoader)", fed, **OURS),
        Contender("penstock.Loader, each column by itself", ours(row_budget_bytes=1), **OURS),
        Contender("penstock.Loader, resident", ours(residency="all"), **OURS),
        Contender("penstock.Loader", ours(), **OURS),
    ]


def compare(setting: Setting) -> list[Result]:
    results = []
    samples = SAMPLES * 4 if setting.on_gpu else SAMPLES // 4 if setting.quick else SAMPLES
    batch = BATCH // 16 if setting.quick else BATCH
    tables = [(count, samples) for count in COLUMNS]
    if setting.on_gpu and not setting.quick:
        tables.append((28, MANY))
    for count, samples in tables:
        table = {f"c{k}": torch.randint(0, LARGEST, (samples,)) for k in range(count)}
        table[f"c{count - 1}"] = torch.arange(samples)  # by which batches are compared
        name = f"{count} int64 columns, batch {batch}" if count > 1 else f"one int64 column, batch {batch}"
        if samples == MANY:
            name += f", {MANY:,} rows"
        measure = _measure_with(table, setting)
        shown = contenders(table, batch)[-1:] if samples == MANY else contenders(table, batch)
        results += [attempt(name, contender, setting, measure) for contender in shown]
    return results


def _verify(batches: Iterable, table: Table, setting: Setting) -> None:
    """Compares an epoch with the table. Each sample comes once at most."""
    names = list(table)
    reference = {name: column.to(setting.target) for name, column in table.items()}
    seen = torch.zeros(len(table[names[-1]]), dtype=torch.int32, device=setting.target)
    wrong = torch.zeros((), dtype=torch.int64, device=setting.target)
    for fed in batches:
        if setting.on_gpu:
            torch.cuda._sleep(300_000)
        number = fed[names[-1]].clone()
        for name in names:
            wrong += (fed[name] != reference[name][number]).any()
        seen.index_add_(0, number, torch.ones_like(number, dtype=torch.int32))
    if int(wrong) or int(seen.max()) != 1:
        raise WrongBytes(f"{int(wrong)} columns hold other samples, or samples came {int(seen.max())} times")


def _measure_with(table: Table, setting: Setting) -> Callable[[Contender, Result], None]:
    def measure(contender: Contender, result: Result) -> None:
        with opened(contender, table, setting, None) as batches:
            _verify(batches, table, setting)
            result.verified = True
            setting.synchronize()
            done, begin = 0, time.perf_counter()
            for done, _ in enumerate(endless(batches), 1):
                if done % 8 == 0 and time.perf_counter() - begin > setting.seconds:
                    break
            setting.synchronize()
            result.figures = {"batch_us": (time.perf_counter() - begin) / done * 1e6}
            if contender.ours:
                wall, processor, _ = cost_of_next(endless(batches), setting, rest=0.002)
                result.figures |= {"thread_us_after_rest": 1e6 * wall, "processor_us_after_rest": 1e6 * processor}

    return measure
