"""Parquet files, streamed through pyarrow by row groups."""

from __future__ import annotations

import os
import pickle
import sys

import numpy as np
import pytest
import torch

import penstock

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

ROWS, GROUP = 4000, 50
ID = np.arange(ROWS)
TABLE = pyarrow.table(
    {
        "id": ID,
        "a": ID * 0.5,
        "b": (ID % 7).astype(np.int16),
        "e": pyarrow.array(np.stack([ID, -ID], axis=1).tolist(), pyarrow.list_(pyarrow.int32())),
    }
)
SMALL = 3 * 500 * 26  # memory for windows of 500 rows


@pytest.fixture
def folder(tmp_path):
    """The table in three files."""
    for i, (begin, end) in enumerate([(0, 1030), (1030, 1080), (1080, ROWS)]):
        parquet.write_table(TABLE.slice(begin, end - begin), tmp_path / f"{i}.parquet", row_group_size=GROUP)
    return tmp_path


def ids(loader):
    return np.concatenate([np.asarray(batch["id"]) for batch in loader])


def shuffled(folder, **options):
    return penstock.Loader(folder, 64, True, "host", **{"memory": SMALL, **options})


def test_all_ways_to_name_files_give_their_rows_in_order(folder, device):
    files = sorted(folder.glob("*.parquet"))
    for data in (str(folder), folder, str(folder / "*.parquet"), [*map(str, files)], files):
        got = list(penstock.Loader(data, 128, device=device))
        assert np.concatenate([batch["id"].cpu() for batch in got]).tolist() == ID.tolist()
        assert np.concatenate([batch["e"].cpu() for batch in got]).tolist() == TABLE["e"].to_pylist()
        assert [got[0][name].dtype for name in TABLE.column_names] == [
            torch.int64,
            torch.float64,
            torch.int16,
            torch.int32,
        ]
    assert ids(penstock.Loader(files[2], 64, device="host")).tolist() == ID[1080:].tolist()
    loader = penstock.Loader(folder, 64, device="host")
    assert len(loader.dataset) == ROWS and loader.dataset[-1]["a"] == (ROWS - 1) * 0.5


def test_an_epoch_has_each_row_once_in_an_order_that_seed_and_epoch_choose(folder):
    loader = shuffled(folder)
    epochs = [ids(loader).tolist() for _ in range(3)]
    assert all(sorted(epoch) == ID.tolist() for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] and "windows of 500" in loader.describe()[-1]
    for threads in (1, 3):
        other = shuffled(folder, tuning=penstock.Tuning(threads=threads))
        other.set_epoch(1)
        assert ids(other).tolist() == epochs[1]
    assert ids(shuffled(folder, seed=1)).tolist() != epochs[0]
    assert ids(pickle.loads(pickle.dumps(shuffled(folder)))).tolist() == epochs[0]


def test_it_resumes_within_an_epoch_also_with_other_ranks(folder):
    whole = ids(shuffled(folder)).tolist()
    loader = shuffled(folder)
    begun = iter(loader)
    taken = [i for _ in range(21) for i in next(begun)["id"].tolist()]
    state = loader.state_dict()
    assert taken == whole[: len(taken)]
    again = shuffled(folder)
    again.load_state_dict(state)
    assert ids(again).tolist() == whole[len(taken) :]
    shares = [shuffled(folder, rank=rank, world_size=2) for rank in range(2)]
    for share in shares:
        share.load_state_dict(state)
    parts = [ids(share).tolist() for share in shares]
    assert parts == [whole[len(taken) :: 2], whole[len(taken) + 1 :: 2]]
    parquet.write_table(TABLE, folder / "again.parquet", row_group_size=2 * GROUP)
    others = [shuffled(folder, memory="1GiB"), shuffled(folder, seed=2), penstock.Loader(folder / "0.parquet", 64)]
    for other in [*others, shuffled(folder / "again.parquet")]:
        with pytest.raises(penstock.InvalidArgument, match="The state is of"):
            other.load_state_dict(state)


def test_the_quality_of_the_shuffle(folder):
    """As docs/feeding-what.md states it."""
    window, share, uniform, near = 500, [], [], []
    for seed in range(8):
        order = ids(shuffled(folder, seed=seed))
        place = np.empty(ROWS)
        place[order] = np.arange(ROWS)
        batch = place // 64
        inner = ID[:-1] % GROUP != GROUP - 1  # neighbours of one row group
        share.append((batch[:-1] == batch[1:])[inner].mean())
        near.append(np.abs(place[:-1] - place[1:])[inner].mean())
        uniform.append(place.reshape(8, -1).mean(axis=1))  # by parts of the files
    assert np.mean(share) == pytest.approx(63 / (window - 1), rel=0.15)
    assert np.mean(near) == pytest.approx(window / 3, rel=0.1)
    assert np.mean(uniform, axis=0) == pytest.approx(np.full(8, ROWS / 2), rel=0.3)


def test_row_groups_are_decoded_once_for_an_epoch_and_only_ahead(folder, monkeypatch):
    read = []
    plain = parquet.ParquetFile.read_row_group
    monkeypatch.setattr(
        parquet.ParquetFile, "read_row_group", lambda self, *a, **k: [read.append(a[0]), plain(self, *a, **k)][1]
    )
    fits = shuffled(folder, memory=None)
    assert [len(ids(fits)) for _ in range(3)] == [ROWS] * 3 and len(read) == 81  # later epochs read nothing
    loader = iter(shuffled(folder))
    next(loader)
    assert 10 <= len(read) - 81 <= 20  # this window and the one behind it, of 81 row groups
    assert len([1 for _ in loader]) == 62 and 81 <= len(read) - 81 <= 105  # and ahead of the next epoch


def test_windows_and_batches_of_any_size_give_the_right_bytes(folder):
    for batch, memory in ((1, 1), (ROWS, 1), (3000, SMALL), (64, 3 * ROWS * 26)):
        for shuffle in (False, True):
            loader = penstock.Loader(folder, batch, shuffle, "host", memory=memory)
            got = list(loader)
            for name in ("a", "e"):
                values = np.concatenate([np.asarray(each[name]) for each in got])
                rows = np.concatenate([np.asarray(each["id"]) for each in got])
                assert np.array_equal(values, np.array(TABLE[name].to_pylist())[rows])


def test_features_and_target_of_files_and_of_tables(folder):
    for data in (folder, TABLE, TABLE.to_pandas()):
        [(x, y)] = penstock.Loader(data, ROWS, device="host", features=["a", "b"], target="id", to="float32")
        assert x.tolist() == np.stack([ID * 0.5, ID % 7], axis=1).tolist() and y.tolist() == ID.tolist()
        assert [x.dtype, y.dtype] == [torch.float32, torch.int64]
        [x] = penstock.Loader(data, ROWS, device="host", features=["b"])
        assert x.tolist() == (ID % 7).reshape(-1, 1).tolist()
        for wrong in ({"features": ["c"]}, {"features": "a"}, {"features": []}, {"target": "c"}):
            with pytest.raises(penstock.InvalidArgument, match=r"`features` lists columns.*'id'"):
                penstock.Loader(data, 64, device="host", **wrong)
    chosen = penstock.Loader(TABLE.drop(["e"]), 64, True, "host", target="id")
    first = next(iter(pickle.loads(pickle.dumps(chosen))))
    assert [part.tolist() for part in first] == [part.tolist() for part in next(iter(chosen))]
    large = pyarrow.table({"x": [0, 2**24 + 1], "y": [1.0, 1e300]})
    parquet.write_table(large, folder / "large.parquet", row_group_size=1)
    for name, match in (("x", "'x' .* rounds those beyond"), ("y", "'features' .* too large for float32")):
        loader = penstock.Loader(folder / "large.parquet", 1, device="host", features=[name], to="float32")
        with pytest.raises(penstock.Error, match=rf"large.parquet, row group 1: {match}"):
            list(loader)
    with pytest.raises(penstock.InvalidArgument, match="columns of a table"):
        penstock.Loader(ID, 64, device="host", target="id")


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ([[1.0, 2.0], [1.0, None]], r"row group 1: Column 'x' has 1 nulls"),
        ([["a", "b"], ["c", "d"]], r"row group 0: Column 'x' holds string"),
        (
            [[[1, 2], [3, 4]], [[1], [2]]],
            r"row group 1: Column 'x' holds values of shape \(1,\), and \(2,\).*read_table",
        ),
        ([[[1, 2], [3, 4]], [[1], [2, 3]]], r"row group 1: Column 'x' holds lists of 1 to 2 values"),
    ],
)
def test_what_is_no_array_is_refused_with_its_place(values, match, tmp_path):
    parquet.write_table(pyarrow.table({"x": [*values[0], *values[1]]}), tmp_path / "x.parquet", row_group_size=2)
    with pytest.raises(penstock.Error, match=rf"x.parquet, {match}"):
        list(penstock.Loader(tmp_path / "x.parquet", 2, device="host"))


def test_files_that_do_not_fit_or_change_are_named(folder, monkeypatch):
    first = folder / "0.parquet"
    whole = first.read_bytes()

    loader = iter(penstock.Loader(folder, 64, device="host"))
    next(loader)
    os.utime(folder / "2.parquet", (1, 1))
    with pytest.raises(penstock.Error, match=r"2.parquet, row group \d+: The file has changed"):
        list(loader)

    first.write_bytes(whole[:40] + bytes(2000) + whole[2040:])
    with pytest.raises(penstock.Error, match=r"0.parquet, row group 0: "):
        list(penstock.Loader(folder, 64, device="host"))
    first.write_bytes(whole[:-100])
    with pytest.raises(penstock.Error, match=r"0.parquet: "):
        penstock.Loader(folder, 64, device="host")
    with pytest.raises(penstock.Error, match=r"none.parquet: "):
        penstock.Loader(folder / "none.parquet", 64, device="host")
    for wrong, match in (
        (TABLE.drop(["a"]), "Column 'a' is double in .*1.parquet and missing in .*3.parquet"),
        (TABLE.set_column(0, "id", TABLE["a"]), "Column 'id' is int64 in .*1.parquet and double in .*3.parquet"),
    ):
        parquet.write_table(wrong, folder / "3.parquet")
        with pytest.raises(penstock.InvalidArgument, match=match):
            penstock.Loader([folder / "1.parquet", folder / "3.parquet"], 64, device="host")

    parquet.write_table(TABLE.slice(0, 0), folder / "3.parquet")
    with pytest.raises(penstock.InvalidArgument, match=r"no rows in .*3.parquet"):
        penstock.Loader(folder / "3.parquet", 64, device="host")
    first.write_bytes(whole)
    assert len(ids(penstock.Loader(folder, 64, device="host"))) == ROWS  # a file without rows beside others

    for options in ({"sampler": range(3)}, {"pack": {"e": 64}}, {"pad": "longest"}):
        with pytest.raises(penstock.InvalidArgument, match="without a sampler"):
            penstock.Loader(folder, 64, device="host", **options)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(penstock.InvalidArgument, match="pip install pyarrow"):
        penstock.Loader(folder, 64, device="host")
