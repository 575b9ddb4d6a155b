"""Tables as datasets: each column keeps its type, and nulls are refused with the column's name."""

import pickle
import re

import numpy as np
import pytest
import torch

import penstock
from penstock._loader.columns import fields_of

LARGE = 2**53 + 1  # float64 cannot hold it


def batches(data, device, **options):
    """The whole dataset, column by column."""
    loader = penstock.Loader(data, 3, device=device, **options)
    got = [{k: v.cpu().clone() for k, v in batch.items()} for batch in loader]
    return {key: torch.cat([batch[key] for batch in got]) for key in got[0]}


def expect(got, **columns):
    assert list(got) == list(columns)
    for name, column in columns.items():
        expected = torch.as_tensor(column)
        assert got[name].dtype == expected.dtype, name
        assert torch.equal(got[name], expected), name


IDS = np.array([LARGE, LARGE + 1, 3, 4, 5], np.int64)
PRICES = np.array([0.5, np.nan, 2, 3, 4], np.float32)
FLAGS = np.array([True, False, True, True, False])


class TestPandas:
    @pytest.fixture(autouse=True)
    def _import(self):
        self.pd = pytest.importorskip("pandas")

    def frame(self):
        return self.pd.DataFrame({"id": IDS, "price": PRICES, "flag": FLAGS})

    def test_columns_keep_names_and_types(self, device):
        got = batches(self.frame(), device)
        assert torch.isnan(got["price"][1]) and got["price"].dtype == torch.float32
        assert torch.equal(got["id"], torch.from_numpy(IDS)) and torch.equal(got["flag"], torch.from_numpy(FLAGS))

    def test_nullable_types(self, device):
        frame = self.frame().convert_dtypes()
        frame["price"] = frame["price"].fillna(7)
        expect(batches(frame[["id", "flag"]], device), id=IDS, flag=FLAGS)

    @pytest.mark.parametrize("values", [["a", "b"], [None, 1], ["2020-01-01"] * 2])
    def test_what_is_not_numbers_is_refused_by_name(self, values):
        frame = self.pd.DataFrame({"ok": [1, 2], "bad": self.pd.Series(values, dtype="object")})
        with pytest.raises(penstock.InvalidArgument, match="'bad'"):
            penstock.Loader(frame, device="host")
        frame["bad"] = self.pd.Categorical(["a", "b"])
        with pytest.raises(penstock.InvalidArgument, match=r"'bad' holds category.*cat\.codes"):
            penstock.Loader(frame, device="host")

    def test_columns_of_arrow_in_a_frame(self, device):
        pa = pytest.importorskip("pyarrow")
        rows = np.arange(10).reshape(5, 2)
        lists = self.pd.Series(rows.tolist(), dtype=self.pd.ArrowDtype(pa.list_(pa.int64())))
        expect(batches(self.pd.DataFrame({"rows": lists, "id": IDS}), device), rows=rows, id=IDS)

    def test_intervals_and_times_are_refused_by_name(self):
        frame = self.pd.DataFrame({"bad": self.pd.IntervalIndex.from_breaks([0, 1, 2])})
        with pytest.raises(penstock.InvalidArgument, match=r"'bad' holds interval.*cat\.codes"):
            penstock.Loader(frame, device="host")
        frame = self.pd.DataFrame({"bad": self.pd.date_range("2020", periods=2, tz="UTC")})
        with pytest.raises(penstock.InvalidArgument, match=r"'bad' holds datetime64.*Times become numbers"):
            penstock.Loader(frame, device="host")

    def test_two_columns_of_one_name(self):
        frame = self.pd.DataFrame([[1, 2]], columns=["a", "a"])
        with pytest.raises(penstock.InvalidArgument, match="same name"):
            penstock.Loader(frame, device="host")

    def test_a_series(self, device):
        series = self.pd.Series(IDS)
        assert torch.equal(next(iter(penstock.Loader(series, 5, device=device))).cpu(), torch.from_numpy(IDS))
        got = batches({"s": series.convert_dtypes()}, device)
        expect(got, s=IDS)


class TestPolars:
    @pytest.fixture(autouse=True)
    def _import(self):
        self.pl = pytest.importorskip("polars")

    def test_columns_keep_names_and_types(self, device):
        frame = self.pl.DataFrame({"id": IDS, "flag": FLAGS, "row": np.arange(10, dtype=np.int16).reshape(5, 2)})
        expect(batches(frame, device), id=IDS, flag=FLAGS, row=np.arange(10, dtype=np.int16).reshape(5, 2))

    def test_integers_of_128_bits_are_refused_by_name(self):
        with pytest.raises(penstock.InvalidArgument, match=r"'a' holds Int128.*cast\(polars\.Int64\)"):
            penstock.Loader(self.pl.DataFrame({"a": self.pl.Series([1], dtype=self.pl.Int128)}), device="host")

    def test_nulls_within_rows_are_refused_too(self):
        pytest.importorskip("pyarrow")
        rows = self.pl.Series([[1, None], [3, 4]], dtype=self.pl.Array(self.pl.Int64, 2))
        with pytest.raises(penstock.InvalidArgument, match="Column 'r' has 1 nulls"):
            penstock.Loader(self.pl.DataFrame({"r": rows}), device="host")
        with pytest.raises(penstock.InvalidArgument, match="'s' holds struct"):
            penstock.Loader(self.pl.DataFrame({"s": [{"a": 1, "b": 0.5}]}), device="host")
        with pytest.raises(penstock.InvalidArgument, match="collect"):
            penstock.Loader(self.pl.LazyFrame({"a": [1]}), device="host")


@pytest.fixture(params=["small", "large"])
def size(request, monkeypatch):
    """Columns of several chunks, or with an order of rows, are copied if they are small, and else read in place."""
    if request.param == "large":
        monkeypatch.setattr("penstock._loader.chunks.LARGE", 0)


@pytest.mark.usefixtures("size")
class TestArrow:
    @pytest.fixture(autouse=True)
    def _import(self):
        self.pa = pytest.importorskip("pyarrow")

    def test_tables_in_chunks_slices_and_batches(self, device):
        table = self.pa.table({"id": IDS, "price": np.arange(5, dtype=np.float32), "flag": FLAGS})
        expect(batches(table, device), id=IDS, price=np.arange(5, dtype=np.float32), flag=FLAGS)
        chunked = self.pa.concat_tables([table.slice(1, 2), table.slice(0, 1)])
        expect(batches(chunked.select(["flag", "id"]), device), flag=FLAGS[[1, 2, 0]], id=IDS[[1, 2, 0]])
        expect(batches(table.to_batches()[0].slice(2), device), id=IDS[2:], price=np.float32([2, 3, 4]), flag=FLAGS[2:])

    def test_what_is_done_with_arrays_is_done_with_chunks(self, device):
        prices = np.arange(5, dtype=np.float64)
        chunked = self.pa.table({"id": self.pa.chunked_array([IDS[:2], IDS[2:]]), "price": [*map(float, prices)]})
        chunked = self.pa.concat_tables([chunked, chunked])
        got = batches(chunked, device, to={"price": "float32"}, scale={"price": 0.5})
        expect(got, id=np.concatenate([IDS] * 2), price=np.concatenate([prices] * 2).astype(np.float32) / 2)
        loader = penstock.Loader(chunked, 10, device=device)
        assert torch.equal(next(iter(pickle.loads(pickle.dumps(loader))))["id"], next(iter(loader))["id"])
        assert loader.dataset[6]["id"] == IDS[1]
        matrix = next(iter(penstock.Loader({"m": chunked.select(["price"])}, 10, device=device)))["m"]
        assert torch.equal(matrix.cpu()[:, 0], torch.from_numpy(np.concatenate([prices] * 2)))
        shared = penstock.SharedDataset(lambda: {"id": chunked["id"]})
        assert torch.equal(torch.as_tensor(shared.data["id"].copy()), torch.from_numpy(np.concatenate([IDS] * 2)))

    def test_large_columns_are_not_copied(self, device, monkeypatch):
        monkeypatch.setattr("penstock._loader.chunks.LARGE", 0)
        memory = np.arange(12, dtype=np.int32)
        buffer = self.pa.py_buffer(memory)
        chunks = [self.pa.Array.from_buffers(self.pa.int32(), 4, [None, buffer], offset=at) for at in (8, 4, 0)]
        column = self.pa.chunked_array(chunks)
        [field] = fields_of(column).arrays
        assert all(np.shares_memory(array, memory) for array in field.arrays)
        memory += 100
        loader = penstock.Loader(field, 12, device=device)
        assert next(iter(loader)).cpu().tolist() == [*range(108, 112), *range(104, 108), *range(100, 104)]

    def test_whatever_has_an_arrow_stream(self, device):
        table = self.pa.table({"id": IDS})

        class Stream:
            def __arrow_c_stream__(self, requested_schema=None):
                return table.__arrow_c_stream__(requested_schema)

        expect(batches(Stream(), device), id=IDS)
        doubles = self.pa.table({"x": np.arange(5.0)})
        once = self.pa.RecordBatchReader.from_batches(doubles.schema, doubles.to_batches())
        (matrix,) = next(iter(penstock.Loader((once,), 5, device=device, to="float32")))
        assert matrix.cpu()[:, 0].tolist() == [*range(5)]

    def test_lists_of_one_length_are_rows(self, device):
        rows = np.arange(20, dtype=np.int32).reshape(5, 4)
        fixed = self.pa.FixedSizeListArray.from_arrays(self.pa.array(rows.ravel()), 4)
        lists = self.pa.array(rows.tolist(), self.pa.list_(self.pa.int32()))
        table = self.pa.table({"fixed": fixed, "lists": lists})
        expect(batches(table, device), fixed=rows, lists=rows)
        expect(batches(table.slice(2, 3), device), fixed=rows[2:], lists=rows[2:])

    def test_tensors_and_bools_of_a_byte(self, device):
        values = np.arange(12, dtype=np.int32)
        for kind, expected in (
            (self.pa.fixed_shape_tensor(self.pa.int32(), (2, 3)), values.reshape(2, 2, 3)),
            (
                self.pa.fixed_shape_tensor(self.pa.int32(), (2, 3), permutation=[1, 0]),
                values.reshape(2, 2, 3).transpose(0, 2, 1),
            ),
        ):
            storage = self.pa.FixedSizeListArray.from_arrays(self.pa.array(values), 6)
            table = self.pa.table({"t": self.pa.ExtensionArray.from_storage(kind, storage)})
            expect(batches(table, device), t=np.ascontiguousarray(expected))
        if hasattr(self.pa, "bool8"):
            flags = self.pa.ExtensionArray.from_storage(self.pa.bool8(), self.pa.array([1, 0, 1], self.pa.int8()))
            expect(batches(self.pa.table({"b": flags}), device), b=np.array([True, False, True]))

    @pytest.mark.parametrize(
        ("column", "message"),
        [
            ([[1, 2], [None, 3]], "Column 'c' has 1 nulls"),
            ([[1, 2], None], "Column 'c' has 1 nulls"),
            ([[1, 2], [3]], "lists of 1 to 2 values"),
            (lambda pa: pa.chunked_array([[[[1, 2]]], [[[1, 2, 3]]]]), "lists of 2 to 3 values"),
            (lambda pa: pa.array([7, 8]).dictionary_encode(), r"Write x\.cast\('int64'\)"),
            (["a", "b"], "'c' holds string"),
            ([{"x": 1}], "'c' holds struct"),
        ],
    )
    def test_what_does_not_fit_is_refused_by_name(self, column, message):
        column = column(self.pa) if callable(column) else column
        with pytest.raises(penstock.InvalidArgument, match=message):
            penstock.Loader(self.pa.table({"c": column}), device="host")

    def test_a_stream_that_fails_midway_says_so_and_leaves_nothing(self):
        def batches(good):
            for _ in range(good):
                yield self.pa.record_batch({"x": self.pa.array(range(1000))})
            raise ValueError("the disk is gone")

        class Stream:
            def __init__(self, good):
                reader = pa.RecordBatchReader.from_batches(pa.schema({"x": pa.int64()}), batches(good))
                self.__arrow_c_stream__ = reader.__arrow_c_stream__

        pa, before = self.pa, self.pa.total_allocated_bytes()
        for good in (0, 1, 5):
            for data in (Stream(good), (Stream(good), np.zeros(3))):
                with pytest.raises(penstock.Error, match=r"Arrow stream of a .*Stream failed: .*the disk is gone"):
                    penstock.Loader(data, device="host")
            del data
            assert pa.total_allocated_bytes() == before


NULLS = {"n": [1, None, LARGE], "flag": [True, None, True], "x": [0.5, None, 2.5], "y": [1, 2, 3]}


def tables(kind, columns, folder):
    """A table in one of the forms that a Loader takes."""
    library = pytest.importorskip(kind)
    if kind == "pandas":
        return library.DataFrame({name: library.array(values) for name, values in columns.items()})
    if kind == "datasets":
        return library.Dataset.from_dict(columns).select([0, 1, 2]).shuffle(seed=0).sort("y")
    if kind == "pyarrow.parquet":
        library.write_table(tables("pyarrow", columns, folder), folder / "x.parquet", row_group_size=1)
        return folder / "x.parquet"
    return library.table(columns) if kind == "pyarrow" else library.DataFrame(columns)


@pytest.mark.parametrize("kind", ["pyarrow", "pandas", "polars", "datasets", "pyarrow.parquet"])
def test_nulls_are_filled_as_asked(kind, device, tmp_path):
    pytest.importorskip("pyarrow")
    table = tables(kind, NULLS, tmp_path)
    x = np.array([0.5, 0, 2.5])
    expect(batches(table, device, fill_null=0), n=[1, 0, LARGE], flag=[True, False, True], x=x, y=[1, 2, 3])
    options = {"device": device, "fill_null": {"x": 0.25, "n": -1, "flag": 0}, "features": ["y", "x"], "target": "n"}
    loader = penstock.Loader(table, 3, **options)
    for again in (loader, pickle.loads(pickle.dumps(loader))):
        x, n = next(iter(again))
        assert x.tolist() == [[1, 0.5], [2, 0.25], [3, 2.5]] and n.tolist() == [1, -1, LARGE]
    for options, error in (
        ({}, r"'n' has 1 nulls.*fill_null=\{'n': 0\}"),
        ({"fill_null": {"n": 1}}, "'flag' has 1 nulls"),
        ({"fill_null": 0.5}, "'n' holds int64, and fill_null=0.5 is no such value"),
        ({"fill_null": "a"}, "'n' holds int64, and fill_null='a' is no such value"),
        ({"fill_null": {"n": 1, "flag": 2}}, "'flag' holds bool, and fill_null=2"),
        ({"fill_null": {"N": 1}}, "`fill_null` names the column 'N', and there are"),
        ({"fill_null": {"n": 1, "flag": 0, "x": 10**400}}, "'x' holds double, and fill_null=10{400} is no such value"),
    ):
        with pytest.raises(penstock.Error, match=error):
            list(penstock.Loader(table, 3, device="host", **options))
    for data in (np.zeros(3), (table, np.zeros(3))):
        with pytest.raises(penstock.InvalidArgument, match="`fill_null` is for a table"):
            penstock.Loader(data, device="host", fill_null=0)


@pytest.mark.usefixtures("size")
class TestHuggingFace:
    @pytest.fixture(autouse=True)
    def _import(self):
        self.datasets = pytest.importorskip("datasets")

    def dataset(self):
        tokens = np.arange(20).reshape(5, 4)
        return self.datasets.Dataset.from_dict({"id": IDS.tolist(), "tokens": tokens.tolist(), "text": list("abcde")})

    def test_columns_in_the_order_of_shuffled_and_selected_sets(self, device):
        plain = self.dataset().remove_columns("text")
        for dataset in (plain, plain.shuffle(seed=3), plain.select([4, 0, 2]), plain.shuffle(seed=1).select([3, 1])):
            expect(batches(dataset, device), id=dataset["id"][:], tokens=np.array(dataset["tokens"][:]))

    def test_columns_that_are_not_chosen_may_be_texts(self, device):
        dataset = self.dataset().add_column("n", [1, None, 3, 4, 5])
        options = {"features": ["id", "n"], "fill_null": 2}
        expected = np.stack([IDS, [1, 2, 3, 4, 5]], 1)
        assert np.array_equal(next(iter(penstock.Loader(dataset, 5, device=device, **options))), expected)

    def test_rows_that_a_filter_leaves_out_need_not_fit(self, device):
        dataset = self.datasets.Dataset.from_dict({"n": [1, None, 3], "tokens": [[1, 2], [3], [4, 5]]})
        expect(
            batches(dataset.filter(lambda row: row["n"]), device), n=np.array([1, 3]), tokens=np.array([[1, 2], [4, 5]])
        )
        with pytest.raises(penstock.InvalidArgument, match="Column 'n' has 1 nulls"):
            penstock.Loader(dataset.select([2, 1]), device="host")

    def test_the_formats_columns_alone(self, device):
        dataset = self.dataset()
        with pytest.raises(penstock.InvalidArgument, match="'text'"):
            penstock.Loader(dataset, device="host")
        dataset.set_format("torch", columns=["id"])
        expect(batches(dataset, device), id=IDS)

    def test_transforms_and_other_dtypes_are_not_left_out(self):
        plain = self.dataset().remove_columns("text")
        with pytest.raises(penstock.InvalidArgument, match="transform"):
            penstock.Loader(plain.with_transform(lambda batch: batch), device="host")
        with pytest.raises(penstock.InvalidArgument, match="`to=`"):
            penstock.Loader(plain.with_format("torch", dtype=torch.float32), device="host")

    def test_a_dict_of_splits(self):
        with pytest.raises(penstock.InvalidArgument, match=r"dataset\['train'\]"):
            penstock.Loader(self.datasets.DatasetDict({"train": self.dataset()}), device="host")


class TestColumnsOfAMatrix:
    """They are read where they lie, and copied only if they do not become rows."""

    SAMPLES = 500

    def matrix(self):
        return np.random.default_rng(3).integers(-(2**40), 2**40, (2 * self.SAMPLES, 9))

    def columns(self, matrix):
        rows = matrix[::2]
        return {"first": rows[:, 0], "last": rows[:, 8], "three": rows[:, 2:5], "wide": matrix[1::2]}

    @pytest.mark.parametrize("as_tensors", [False, True])
    @pytest.mark.parametrize("options", [{}, {"residency": "all"}, {"tuning": penstock.Tuning(gather="host")}])
    def test_deliver_what_copies_do(self, device, as_tensors, options):
        matrix = self.matrix()
        data = self.columns(torch.from_numpy(matrix) if as_tensors else matrix)
        assert not data["first"].is_contiguous() if as_tensors else not data["first"].flags.c_contiguous
        loader = penstock.Loader(data, 64, device=device, shuffle=True, seed=1, **options)
        copies = {key: torch.as_tensor(value).contiguous().clone() for key, value in data.items()}
        of_copies = penstock.Loader(copies, 64, device=device, shuffle=True, seed=1)
        for batch, expected in zip(loader, of_copies, strict=True):
            for key, value in expected.items():
                assert torch.equal(batch[key], value), key

    def test_samples_of_the_dataset(self):
        matrix = self.matrix()
        loader = penstock.Loader(self.columns(matrix), 64, device="host")
        assert loader.dataset[7]["first"] == matrix[14, 0]

    def test_the_matrix_may_go(self, device):
        matrix = self.matrix()
        data = self.columns(matrix.copy())
        loader = penstock.Loader(data, self.SAMPLES, device=device)
        del data
        batch = next(iter(loader))
        for key, value in self.columns(matrix).items():
            assert torch.equal(batch[key].cpu(), torch.from_numpy(np.ascontiguousarray(value))), key

    def test_fields_of_records(self, device):
        records = np.zeros(self.SAMPLES, np.dtype([("a", np.int32), ("b", np.float64, 2), ("c", np.int16)], align=True))
        packed = np.zeros(self.SAMPLES, np.dtype([("a", np.int32), ("b", np.float64, 2), ("c", np.int16)]))
        matrix = self.matrix()
        for some in (records, packed):
            some["a"], some["b"], some["c"] = matrix[::2, 0] % 1000, matrix[::2, 1:3] / 7, matrix[::2, 3] % 100
            got = batches({name: some[name] for name in some.dtype.names}, device)
            expect(got, **{name: np.ascontiguousarray(some[name]) for name in some.dtype.names})

    @pytest.mark.parametrize(
        "change",
        [
            lambda column: column[::-1],
            lambda column: np.broadcast_to(column[:1], column.shape),
            lambda column: column.astype(">i8"),
            lambda column: np.lib.stride_tricks.sliding_window_view(column, 4),
            lambda column: column[:1],
        ],
        ids=["reversed", "repeated", "other byte order", "overlapping", "one sample"],
    )
    def test_others_are_copied(self, device, change):
        column = change(self.matrix()[:, 4])
        got = batches({"x": column, "y": np.arange(len(column))}, device)
        expect(got, x=np.ascontiguousarray(column, column.dtype.newbyteorder("=")), y=np.arange(len(column)))

    def test_a_frame_of_a_matrix(self, device):
        pd = pytest.importorskip("pandas")
        matrix = self.matrix()
        frame = pd.DataFrame(matrix, columns=[f"c{i}" for i in range(9)])
        expect(batches(frame, device), **{f"c{i}": matrix[:, i].copy() for i in range(9)})

    def test_a_storage_that_was_cut_is_refused(self):
        matrix = torch.from_numpy(self.matrix()).clone()
        column = matrix[:, 3]
        matrix.untyped_storage().resize_(9 * 8 * 20)
        with pytest.raises(penstock.InvalidArgument, match="storage is smaller"):
            penstock.Loader({"x": column, "y": torch.zeros(len(column))}, device="host")


def test_tensordicts(device):
    tensordict = pytest.importorskip("tensordict")
    x, y = torch.arange(10).reshape(5, 2), torch.rand(5)
    data = tensordict.TensorDict({"x": x, "inner": {"y": y}}, batch_size=[5])
    got = [batch.cpu() if device.startswith("cuda") else batch for batch in penstock.Loader(data, 2, device=device)]
    assert [batch.batch_size[0] for batch in got] == [2, 2, 1]
    assert torch.equal(torch.cat([batch["x"] for batch in got]), x)
    assert torch.equal(torch.cat([batch["inner", "y"] for batch in got]), y)
    sample = penstock.Loader(data, 2, device="host").dataset[3]
    assert sample.batch_size == torch.Size([]) and torch.equal(sample["x"], x[3])
    with pytest.raises(penstock.InvalidArgument, match="batch size"):
        penstock.Loader(tensordict.TensorDict({"x": x}, batch_size=[]), device="host")


@pytest.mark.parametrize("kind", ["file", "dataset"])
def test_objects_of_parquet_name_the_lines_that_feed_them(kind, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import dataset, parquet

    parquet.write_table(pyarrow.table({"id": IDS, "y": IDS % 3}), tmp_path / "x.parquet", row_group_size=2)
    x = parquet.ParquetFile(tmp_path / "x.parquet") if kind == "file" else dataset.dataset(tmp_path / "x.parquet")
    with pytest.raises(penstock.InvalidArgument) as raised:
        penstock.Loader(x, 2)
    streamed, whole = re.search(
        r"shuffles: (.*)\. If the table fits into memory, write (.*)\.", str(raised.value)
    ).groups()
    for data in (eval(whole, {"x": x}), eval(re.search("'.*'", streamed)[0].replace("'x", f"'{tmp_path}/x"))):
        expect(batches(data, "host"), id=IDS, y=IDS % 3)
