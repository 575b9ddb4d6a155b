"""Rows a second of the first epoch of a Parquet file: penstock.Loader beside pyarrow's iter_batches and a DataLoader
around Hugging Face's streaming, in turns, on the host device. The file has 100 float32 columns and row groups of
131,072 rows. pyarrow only decodes; Hugging Face makes matrices, as the Loader does with `features`."""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable

import numpy as np
import pyarrow
import pyarrow.parquet

import penstock

GROUP, BATCH = 131_072, 4096
NAMES = [f"c{i}" for i in range(100)]


def write(path: pathlib.Path, groups: int) -> None:
    rng = np.random.default_rng(0)
    schema = pyarrow.schema([(name, pyarrow.float32()) for name in NAMES])
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        for _ in range(groups):
            values = {name: rng.standard_normal(GROUP, dtype=np.float32) for name in NAMES}
            writer.write_table(pyarrow.table(values, schema), row_group_size=GROUP)


def decoded(path: pathlib.Path) -> Iterable[int]:
    return (len(batch) for batch in pyarrow.parquet.ParquetFile(path).iter_batches())


def fed(path: pathlib.Path, shuffle: bool, **options: object) -> Iterable[int]:
    loader = penstock.Loader(path, BATCH, shuffle, "host", **options)
    return (len(x["c0"] if isinstance(x, dict) else x) for x in loader)


def streamed(path: pathlib.Path, most: int) -> Iterable[int]:
    import datasets
    import torch

    data = datasets.load_dataset("parquet", data_files=str(path), split="train", streaming=True)
    shuffled = data.shuffle(seed=0, buffer_size=1000).take(most)
    loader = torch.utils.data.DataLoader(shuffled, batch_size=BATCH)
    return (len(torch.stack(list(columns.values()), 1)) for columns in loader)


def rate(make: Callable[[], Iterable[int]]) -> float:
    """Rows a second, from making the contender to its last row."""
    begin = time.perf_counter()
    rows = sum(make())
    return rows / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=64)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--streamed", type=int, default=2048, help="rows that Hugging Face's stream gives")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "x.parquet")
        write(path, options.groups)
        contenders = {
            "pyarrow iter_batches": lambda: decoded(path),
            "Loader, features, shuffled": lambda: fed(path, True, features=NAMES),
            "Loader, features, in order": lambda: fed(path, False, features=NAMES),
            "Loader, columns, shuffled": lambda: fed(path, True),
            "Hugging Face, shuffled": lambda: streamed(path, options.streamed),
        }
        turns = [{name: rate(make) for name, make in contenders.items()} for _ in range(options.turns)]
    for name in contenders:
        median = statistics.median(turn[name] for turn in turns)
        shares = [round(turn[name] / turn["pyarrow iter_batches"], 4) for turn in turns]
        print(json.dumps({"contender": name, "rows_per_second": round(median), "of_pyarrow_in_each_turn": shares}))


if __name__ == "__main__":
    main()
