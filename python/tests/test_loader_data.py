"""Data of a Loader: files, matrices of tables, types converted on the host, and what to write in place of the rest."""

import os
import pathlib
import pickle
import re
import resource

import numpy as np
import pytest
import torch

import penstock
import safetensors_files
from support import run_program

ROWS = 7
X = np.arange(3 * ROWS, dtype=np.uint8).reshape(ROWS, 3)
Y = np.arange(ROWS)


def all_of(data, device="host", **options):
    """The batches of an epoch put together, in the structure of a batch."""
    batches = [penstock.to_host(batch) for batch in penstock.Loader(data, 3, device=device, **options)]
    first = batches[0]
    if isinstance(first, dict):
        return {key: torch.cat([batch[key] for batch in batches]) for key in first}
    if isinstance(first, torch.Tensor):
        return torch.cat(batches)
    return type(first)(torch.cat(parts) for parts in zip(*batches, strict=True))


def equal(got, expected):
    expected = torch.as_tensor(np.array(expected) if isinstance(expected, np.ndarray) else expected)
    return got.dtype == expected.dtype and torch.equal(got, expected)


def refusal(data, **options):
    with pytest.raises(penstock.InvalidArgument) as raised:
        penstock.Loader(data, 2, device="host", **options)
    return str(raised.value)


class TestOnADisk:
    """Files of 80 MB that the page cache has forgotten."""

    COUNT, BYTES = 800, 100_000

    def forget(self, path):
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)

    @pytest.mark.parametrize("kind", ["npy", "npz", "safetensors", "map", "arrow", "shards"])
    def test_samples_are_read_and_kept_within_memory(self, tmp_path, kind):
        array = np.random.default_rng(3).integers(0, 256, (self.COUNT, self.BYTES), np.uint8)
        path = data = tmp_path / f"x.{kind}"
        if kind in ("npy", "map"):
            np.save(tmp_path / "x.npy", array)
            path = data = tmp_path / "x.npy"
            if kind == "map":
                data = np.load(path, mmap_mode="r")
        elif kind == "npz":
            np.savez(path, x=array)
        elif kind == "safetensors":
            path.write_bytes(safetensors_files.image({"x": ("U8", array.shape, array.tobytes())}))
        elif kind == "arrow":
            pa = pytest.importorskip("pyarrow")
            lists = pa.FixedSizeListArray.from_arrays(pa.array(array.reshape(-1)), self.BYTES)
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, pa.schema([("x", lists.type)])) as writer:
                for i in range(0, self.COUNT, 200):
                    writer.write_batch(pa.record_batch([lists[i : i + 200]], names=["x"]))
            self.forget(path)
            data = pa.ipc.open_file(pa.memory_map(str(path))).read_all().column("x")
        else:
            for i in range(0, self.COUNT, 200):
                np.save(tmp_path / f"{i:03}.npy", array[i : i + 200])
            path = data = tmp_path / "*.npy"
        for file in tmp_path.glob(path.name):
            self.forget(file)
        in_memory = penstock.Loader(array, 64, shuffle=True, device="host")
        for memory in (0, "30MB", 1 << 30, None):
            loader = penstock.Loader(data, 64, shuffle=True, device="host", memory=memory)
            for epoch in range(2):
                in_memory.set_epoch(epoch)
                for got, expected in zip(loader, in_memory, strict=True):
                    got = next(iter(got.values())) if isinstance(got, dict) else got
                    assert torch.equal(got, expected)

    def test_a_file_that_is_cut_meanwhile_is_an_error(self, tmp_path):
        path = tmp_path / "x.npy"
        np.save(path, np.ones((self.COUNT, self.BYTES), np.uint8))
        whole = path.stat().st_size
        for data in (path, np.load(path, mmap_mode="r")):
            self.forget(path)
            loader = penstock.Loader({"pixels": data}, 64, shuffle=True, device="host", memory=0)
            batches = iter(loader)
            next(batches)
            os.truncate(path, 1_000_000)
            with pytest.raises(penstock.Error, match=r"x.npy was cut short .* sample \d+ of field 'pixels'"):
                list(batches)
            os.truncate(path, whole)


class TestWindows:
    """Samples that overlap are read where they lie."""

    SERIES = np.random.default_rng(5).integers(0, 2**16, 1 << 14, np.uint16)

    @pytest.mark.parametrize("step", [1, 3])
    @pytest.mark.parametrize("kind", ["array", "map", "tensor"])
    def test_windows_of_a_series(self, device, tmp_path, kind, step):
        windows = np.lib.stride_tricks.sliding_window_view(self.SERIES, 9)[::step]
        data = windows
        if kind == "map":
            self.SERIES.tofile(tmp_path / "tokens.bin")
            mapped = np.memmap(tmp_path / "tokens.bin", np.uint16)
            data = np.lib.stride_tricks.sliding_window_view(mapped, 9)[::step]
        elif kind == "tensor":
            data = torch.from_numpy(self.SERIES.view(np.int16)).unfold(0, 9, step)
        got = torch.cat([batch.cpu() for batch in penstock.Loader(data, 1000, device=device, to="int64")])
        assert torch.equal(got if kind != "tensor" else got % 2**16, torch.from_numpy(windows.astype(np.int64)))

    def test_windows_are_not_multiplied_out(self):
        windows = np.lib.stride_tricks.sliding_window_view(np.zeros(1 << 24, np.uint16), 1 << 16)  # 2 TiB
        batch = next(iter(penstock.Loader({"x": windows, "y": windows}, 2, shuffle=True, device="host")))
        assert batch["x"].shape == batch["y"].shape == (2, 1 << 16)
        doubles = np.lib.stride_tricks.sliding_window_view(np.zeros(1 << 22), 1 << 20)  # 12 TiB in float32
        assert "convert the series" in refusal(doubles, to="float32")

    def test_no_copy_is_larger_than_the_machines_memory(self, monkeypatch):
        monkeypatch.setattr(penstock._core, "host_memory_bytes", lambda: 1000)
        assert "1200 bytes, of 1000" in refusal(np.zeros((100, 3)), to="float32")
        for gaps in (np.zeros((100, 3, 4)).transpose(0, 2, 1), torch.zeros(100, 3, 4).transpose(1, 2)):
            assert "numpy.moveaxis(x, -1, 1)" in refusal(gaps)

    def test_windows_of_rows(self, device):
        series = np.arange(60, dtype=np.float32).reshape(20, 3)
        windows = np.moveaxis(np.lib.stride_tricks.sliding_window_view(series, 4, axis=0), -1, 1)
        got = torch.cat([batch.cpu() for batch in penstock.Loader(windows, 5, device=device)])
        assert torch.equal(got, torch.from_numpy(windows.copy()))
        huge = np.lib.stride_tricks.sliding_window_view(np.zeros((1 << 20, 256), np.float32), 1 << 19, axis=0)
        assert "numpy.moveaxis(x, -1, 1)" in refusal(huge)


class TestFiles:
    @pytest.fixture(autouse=True)
    def _files(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        np.save("x.npy", X)
        np.save("y.npy", Y)
        np.savez("set.npz", x=X, y=Y)

    @pytest.mark.parametrize("limit", [0, 1 << 30], ids=["mapped", "read"])
    def test_files_of_a_pattern_lie_one_behind_the_other(self, device, monkeypatch, limit):
        monkeypatch.setattr("penstock._loader.columns.LARGE", limit)
        for i in range(12):
            np.save(f"shard-{i:02}.npy", X + i)
            np.savez(f"shard-{i:02}.npz", x=X + i, y=Y + i)
        assert equal(all_of("shard-*.npy", device, shuffle=False), np.concatenate([X + i for i in range(12)]))
        assert equal(all_of("shard-0[1-2].npy", device), np.concatenate([X + 1, X + 2]))
        assert equal(all_of("shard-03*.npy", device), X + 3)
        both = all_of("shard-*.npz", device)
        assert equal(both["x"], np.concatenate([X + i for i in range(12)]))
        assert equal(both["y"], np.concatenate([Y + i for i in range(12)]))
        assert penstock.Loader("shard-*.npz", 3, device="host").dataset[ROWS]["y"] == Y[0] + 1
        np.savez("shard-04.npz", y=Y + 4, x=X + 4)
        assert equal(all_of("shard-*.npz", device)["x"], both["x"])
        pathlib.Path("deep/er").mkdir(parents=True)
        np.save("deep/er/shard-99.npy", X)
        assert equal(all_of("**/shard-*9.npy", device), np.concatenate([X, X + 9]))

    def test_files_that_a_pattern_does_not_take(self):
        assert "No file matches none-*.npy" in refusal("none-*.npy")
        for i in range(3):
            np.save(f"shard-{i}.npy", X)
            np.savez(f"shard-{i}.npz", x=X, y=Y)
        np.savez("shard-2.npz", x=X)
        assert re.search(r"shard-0\.npz has .*'y'.*, and shard-2\.npz has .*: files of one", refusal("shard-*.npz"))
        np.save("shard-2.npy", X.astype(np.int64))
        assert re.search(r"shard-0\.npy has .*uint8.*, and shard-2\.npy has .*int64", refusal("shard-*.npy"))
        pathlib.Path("shard-1.npy").unlink()
        pathlib.Path("shard-1.npy").symlink_to("nowhere")
        assert "There is no file or directory 'shard-1.npy'" in refusal("shard-*.npy")

    def test_a_name_that_is_no_text(self, device):
        pathlib.Path("x.npy").rename(b"\xff.npy".decode("utf-8", "surrogateescape"))
        assert equal(all_of("[!y].npy", device), X)

    def test_more_files_than_a_process_may_open(self, monkeypatch):
        for module in ("columns", "tokens"):
            monkeypatch.setattr(f"penstock._loader.{module}.LARGE", 0)
        for i in range(300):  # more than there are free numbers below the highest open one
            np.save(f"shard-{i}.npy", X)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 10, hard))
        try:
            for data in ("shard-*.npy", penstock.tokens("shard-*.npy", "uint8", length=9)):
                with pytest.raises(penstock.Error, match=r"shard-.*Too many open files.*ulimit -n"):
                    penstock.Loader(data, device="host")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    def test_a_path_is_an_array_and_several_arrays_are_a_dict(self, device):
        assert equal(all_of("x.npy", device), X)
        assert equal(all_of(pathlib.Path("x.npy"), device, to="float32", scale=2), X.astype(np.float32) * 2)
        x, y = all_of(("x.npy", "y.npy"), device)
        assert equal(x, X) and equal(y, Y)
        mixed = all_of({"a": "x.npy", "b": Y}, device)
        assert equal(mixed["a"], X) and equal(mixed["b"], Y)
        both = all_of("set.npz", device)
        assert list(both) == ["x", "y"] and equal(both["x"], X) and equal(both["y"], Y)

    def test_other_formats(self, device):
        safetensors_files.write(pathlib.Path("model"), {"w": ("F32", (2, 2), np.float32([1, 2, 3, 4]).tobytes())})
        assert equal(all_of("model", device), np.float32([[1, 2], [3, 4]]))

    def test_samples_one_by_one(self):
        loader = penstock.Loader(("x.npy", "y.npy"), 2, device="host")
        x, y = loader.dataset[-1]
        assert len(loader.dataset) == ROWS and equal(x, X[-1]) and y == Y[-1] and y.ndim == 0
        with pytest.raises(IndexError):
            loader.dataset[ROWS]

    def test_it_is_read_again_after_pickling(self):
        loader = pickle.loads(pickle.dumps(penstock.Loader("set.npz", 2, device="host")))
        assert equal(torch.cat([batch["x"].clone() for batch in loader]), X)

    def test_what_a_file_is_not(self):
        pathlib.Path("table.csv").write_text("a,b\n1,2\n")
        assert "There is no file or directory 'nothing.npy'" in refusal("nothing.npy")
        assert "set.npz, which holds 2 arrays: pass the path alone" in refusal({"x": "set.npz"})
        with pytest.raises(penstock.Error, match="CSV files are not read; convert it: python3 -c"):
            penstock.Loader("table.csv", 2, device="host")

    def test_it_is_not_read_whole_to_be_converted(self):
        np.save("wide.npy", X.astype(np.float64))
        for data in ("wide.npy", np.load("wide.npy", mmap_mode="r")[1:]):
            assert "read all of it into memory" in refusal(data, to="float32")
        assert equal(all_of(np.array(np.load("wide.npy")), to="float32"), X.astype(np.float32))


def frames():
    pandas, polars, pyarrow = map(pytest.importorskip, ("pandas", "polars", "pyarrow"))
    columns = {"a": np.arange(ROWS), "b": np.linspace(0, 1, ROWS), "c": np.arange(ROWS) % 2 == 0, "y": Y * 2}
    return [pandas.DataFrame(columns), polars.DataFrame(columns), pyarrow.table(columns)], columns


KINDS = pytest.mark.parametrize("kind", range(3), ids=["pandas", "polars", "arrow"])


class TestTables:
    @KINDS
    def test_a_type_alone_is_for_all_columns(self, device, kind):
        tables, columns = frames()
        got = all_of(tables[kind], device, to="float32", scale={"a": 3})
        for name, column in columns.items():
            assert equal(got[name], column.astype(np.float32) * (3 if name == "a" else 1)), name

    @KINDS
    def test_a_matrix_and_a_target(self, device, kind):
        tables, columns = frames()
        table = tables[kind]
        features = table.select(["a", "b", "c"]) if kind else table[["a", "b", "c"]]
        matrix = np.stack([columns[name].astype(np.float64) for name in "abc"], axis=1)
        x, y = all_of((features, table["y"]), device)
        assert equal(x, matrix) and equal(y, columns["y"])
        x, y = all_of((features, table["y"]), device, to="float32")
        assert equal(x, matrix.astype(np.float32)) and equal(y, columns["y"])
        got = all_of({"x": features, "y": table["y"]}, device, to=torch.bfloat16)
        assert equal(got["x"], torch.from_numpy(matrix).bfloat16()) and equal(got["y"], columns["y"])
        x, y = all_of((features, table["y"]), device, to=("float16", "float32"))
        assert equal(x, matrix.astype(np.float16)) and equal(y, columns["y"].astype(np.float32))

    def test_a_matrix_of_integers_is_converted_too(self, device):
        (frame, *_), columns = frames()
        x, y = all_of((frame[["a", "y"]], frame["y"]), device, to="float32")
        assert equal(x, np.stack([columns["a"], columns["y"]], 1).astype(np.float32)) and equal(y, columns["y"])

    def test_rows_lie_beside_columns_in_a_matrix(self, device):
        pyarrow = pytest.importorskip("pyarrow")
        table = pyarrow.table({"one": Y, "two": X[:, :2].tolist()})
        (x,) = all_of((table,), device)
        assert equal(x, np.concatenate([Y[:, None], X[:, :2]], axis=1))

    def test_a_matrix_is_made_of_all_rows(self):
        pandas = pytest.importorskip("pandas")
        columns = np.random.default_rng(1).integers(0, 1000, (3, 10_001))
        frame = pandas.DataFrame({"a": columns[0], "b": columns[1] / 7, "c": columns[2].astype(np.int8)})
        x, _ = penstock.Loader((frame, columns[0]), 10_001, device="host").dataset[:]
        assert x.dtype == np.float64 and (x == frame.to_numpy(np.float64)).all()

    def test_columns_of_a_hugging_face_dataset(self, device):
        datasets = pytest.importorskip("datasets")
        dataset = datasets.Dataset.from_dict({"tokens": X.tolist(), "y": Y.tolist()}).shuffle(seed=1)
        tokens, y = all_of((dataset["tokens"], dataset["y"]), device)
        assert torch.equal(tokens, torch.from_numpy(X).long()[y]) and equal(y.sort().values, Y)

    def test_a_matrix_is_refused_by_the_name_of_its_column(self):
        pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
        arrays = pyarrow.table({"t": [[[1, 2]], [[3, 4]]]})
        assert "'t' of 'field0' holds arrays" in refusal((arrays, np.zeros(2)))
        large = pandas.DataFrame({"id": [2**53 + 1, 1], "x": [0.5, 1]})
        assert "'id' holds integers from 1 to 9007199254740993" in refusal({"x": large})
        assert "table without columns" in refusal({"x": pandas.DataFrame(index=[0, 1])})

    def test_integers_that_a_float_rounds_are_refused(self, device):
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame({"id": [2**24 + 1, 2], "x": [0.5, 1]})
        message = refusal(frame, to="float32")
        assert "'id' holds integers from 2 to 16777217, and float32 rounds those beyond 16777216" in message
        assert "'id' holds integers from 2 to 16777217, and float32" in refusal((frame, Y[:2]), to="float32")
        got = all_of(frame, device, to={"x": "float32"})
        assert equal(got["id"], frame["id"].to_numpy()) and equal(got["x"], np.float32([0.5, 1]))
        assert equal(all_of(frame[:0:-1] * 1, device, to="float32")["id"], np.float32([2]))
        assert "'n' holds integers from 2 to 257, and bfloat16" in refusal(
            {"n": np.int64([257, 2])}, to={"n": "bfloat16"}
        )
        halves = all_of({"n": np.int64([257, 2])}, device, to={"n": "bfloat16"}, scale=0.5)["n"]
        assert equal(halves, torch.tensor([128.5, 1]).bfloat16())
        assert "too large for float32" in refusal(pandas.DataFrame({"x": [1e300, 0]}), to="float32")

    def test_a_pickled_loader_delivers_the_same(self):
        pandas = pytest.importorskip("pandas")
        loader = penstock.Loader(pandas.DataFrame({1: Y, 2: Y / 3}), 3, device="host", to="float32")
        for batch, expected in zip(pickle.loads(pickle.dumps(loader)), loader, strict=True):
            assert list(batch) == [1, 2] and all(equal(batch[key], expected[key]) for key in batch)


class TestConversions:
    @pytest.mark.parametrize("as_tensor", [False, True])
    def test_float64_becomes_what_is_asked_for(self, device, as_tensor):
        data = np.linspace(-1, 1, 20).reshape(5, 4)
        given = torch.from_numpy(data) if as_tensor else data
        x, tokens, y = all_of((given, np.arange(10).reshape(5, 2), np.arange(5)), device, to="float32", scale=0.5)
        assert equal(x, data.astype(np.float32) * np.float32(0.5))
        assert tokens.dtype == y.dtype == torch.int64, "a type alone converts no tokens and labels"

    def test_wide_integers_and_bools_become_floats_by_name(self, device):
        data = {"n": np.arange(-3, 4), "b": Y % 2 == 0}
        got = all_of(data, device, to={"n": "float32", "b": "float16"})
        assert equal(got["n"], data["n"].astype(np.float32)) and equal(got["b"], data["b"].astype(np.float16))

    def test_what_is_for_no_field_is_asked_for_by_name(self):
        message = refusal((Y.reshape(-1, 1), Y), to="float32")
        assert "field0 (int64), field1 (int64)" in message and "to={'field0': 'float32'}" in message


class Chunked:
    """As an array of h5py or Zarr: it is read when it is converted."""

    dtype, shape, chunks = np.dtype(np.float32), (4, 2), (2, 2)

    def __len__(self):
        return 4

    def __array__(self, dtype=None, copy=None):
        raise AssertionError("read whole")


def test_arrays_that_are_not_in_memory_are_not_read_without_a_word(tmp_path):
    assert "numpy.asarray(x)" in refusal({"x": Chunked()})
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = X
        for data in (file["x"], file, (file["x"], Y)):
            assert "h5py" in refusal(data) and "read all of it into memory" in refusal(data)
        assert equal(all_of(np.asarray(file["x"])), X)


RAGGED = [np.zeros((3, 2)), np.zeros((5, 2))]


@pytest.mark.parametrize(
    ("data", "messages"),
    [
        (RAGGED, ["3 to 5", "numpy.stack(data)", "collate_fn"]),
        ({"x": RAGGED}, ["cannot become a NumPy array", "numpy.stack(list(x))", "pad them", "collate_fn"]),
        ([[1, 2], [3]], ["1 to 2", "pad them"]),
        ([{"x": 1}, {"x": 2}], ["numpy.stack([sample[name] for sample in data])"]),
        ([1.0, 2.0], ["numpy.asarray(data)"]),
        (np.array([b"\x89PNG", b"\xff\xd8"]), ["decoded for each sample", "penstock.feed(DataLoader"]),
        ({"x": np.array([b"\x89PNG", None], dtype=object)}, ["decoded for each sample", "penstock.feed(DataLoader"]),
        (np.array(["a", "b"]), ["numpy.unique(x, return_inverse=True)[1]"]),
        (np.array([X, None], dtype=object), ["objects of Python", "numpy.stack(list(x))"]),
        (np.array(["2020-01-01"], "M8[D]"), ['x.astype("int64")']),
        (np.array([1j]), ["numpy.stack([x.real, x.imag], axis=-1)"]),
        (np.zeros(2, [("a", "i4"), ("b", "f4")]), ["{name: x[name] for name in x.dtype.names}"]),
        (np.zeros((4, 0)), ["zero bytes", "Leave the field out", "x.new_empty((len(x), 0))"]),
        (torch.zeros(4, 2, 0), ["zero bytes", "x.new_empty((len(x), 2, 0))"]),
        ({"x": []}, ["Field 'x' has no samples"]),
    ],
    ids=lambda value: None,
)
def test_the_message_names_the_line_to_write(data, messages):
    told = refusal(data)
    assert [message for message in messages if message not in told] == [], told


@pytest.mark.parametrize("kind", [np.full, torch.full])
def test_the_line_for_samples_that_are_tuples_works(device, kind):
    samples = [(kind((3,), float(label)), label) for label in range(4)]
    [line] = re.findall(r" write (\[.*?\])\. ", refusal(samples))
    x, y = all_of(eval(line, {"numpy": np, "data": samples}))
    assert x.tolist() == [[label] * 3 for label in range(4)] and y.tolist() == [0, 1, 2, 3]


def line_of(message, names):
    """The value of the line that the message names for a column."""
    [line] = re.findall(r" (x\.\S*)\. ", message)
    return eval(line, names)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("pandas", ["a", "b", "a"]),
        ("pandas category", ["a", "b", "a"]),
        ("polars", ["a", "b", "a"]),
        ("polars time", None),
        ("polars decimal", None),
        ("arrow", ["a", "b", "a"]),
        ("arrow dictionary", ["a", "b", "a"]),
        ("arrow time", None),
        ("arrow date", None),
        ("arrow decimal", None),
    ],
)
def test_the_line_for_a_column_without_numbers_works(kind, values):
    import datetime
    import decimal

    pandas, polars, pyarrow = map(pytest.importorskip, ("pandas", "polars", "pyarrow"))
    times = [datetime.datetime(2020, 1, day) for day in (1, 2, 1)]
    decimals = [decimal.Decimal("0.5"), decimal.Decimal("1.5"), decimal.Decimal("0.5")]
    table = {
        "pandas": lambda: pandas.DataFrame({"c": values}),
        "pandas category": lambda: pandas.DataFrame({"c": pandas.Categorical(values)}),
        "polars": lambda: polars.DataFrame({"c": values}),
        "polars time": lambda: polars.DataFrame({"c": times}),
        "polars decimal": lambda: polars.DataFrame({"c": decimals}),
        "arrow": lambda: pyarrow.table({"c": values}),
        "arrow dictionary": lambda: pyarrow.table({"c": pyarrow.array(values).dictionary_encode()}),
        "arrow time": lambda: pyarrow.table({"c": times}),
        "arrow date": lambda: pyarrow.table({"c": pyarrow.array([time.date() for time in times])}),
        "arrow decimal": lambda: pyarrow.table({"c": decimals}),
    }[kind]()
    column = table["c"]
    given = [(table, column), (column, column), ({"c": column}, column)]
    if kind.startswith("arrow"):
        given.append((column.chunk(0), column.chunk(0)))
    for data, x in given:
        first, second, third = all_of(line_of(refusal(data), {"x": x, "polars": polars}))
        assert first == third and first != second


def test_encoded_images_of_datasets_are_a_field_by_themselves():
    datasets = pytest.importorskip("datasets")
    images = datasets.Dataset.from_dict({"image": [{"bytes": b"\x89PNG", "path": None}]})
    assert "penstock.Pictures(x)" in refusal(images)


def test_numpy_may_be_missing(tmp_path):
    program = """
import sys
sys.modules["numpy"] = None
import penstock
for data in ([[1, 2], [3, 4]], sys.argv[1], bytearray(8)):
    try:
        penstock.Loader(data, 2, device="host")
    except penstock.Unsupported as error:
        assert "pip install numpy" in str(error), error
    else:
        raise AssertionError(data)
import torch
loader = penstock.Loader((torch.arange(6).reshape(3, 2), torch.rand(3)), 2, device="host")
assert [len(x) for x, _ in loader] == [2, 1]
assert loader.dataset[1][0].tolist() == [2, 3]
"""
    np.save(tmp_path / "x.npy", X)
    ran = run_program(program, tmp_path / "x.npy")
    assert ran.returncode == 0, ran.stderr
