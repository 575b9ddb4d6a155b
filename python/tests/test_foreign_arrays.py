"""Arrays of other libraries, types of ml_dtypes, arrays that carry more than numbers, and NumPy's absence."""

import sys

import numpy as np
import pytest
import torch

import penstock
from dlpack import Foreign
from penstock import _errors
from support import is_gpu, run_program, same

ml_dtypes = pytest.importorskip("ml_dtypes")

SMALL = ["bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"]


class Typed(Foreign):
    """An array of a library such as JAX: NumPy's DLPack lacks its type."""

    def __dlpack__(self, **arguments):
        raise RuntimeError("Unsupported dtype in DLTensor.")

    def __dlpack_device__(self):
        return 1, 0

    def __array__(self, dtype=None, copy=None):
        return self.array


BASE = np.arange(24.0).reshape(4, 6)


@pytest.mark.parametrize(
    "array",
    [
        BASE[:, ::2],
        BASE[::-1],
        BASE[::-2, ::-1],
        np.broadcast_to(BASE[0], (3, 6)),
        np.lib.stride_tricks.sliding_window_view(BASE[0], 3),
        BASE[:0, ::2],
    ],
    ids=["steps", "reversed", "both", "broadcast", "overlapping", "empty"],
)
def test_host_arrays_of_other_libraries_in_any_order(device, array):
    sent = penstock.to_device({"a": [Foreign(array)]}, device)["a"][0]
    assert same(penstock.to_host(sent), np.ascontiguousarray(array))
    assert same(penstock.to_host(Foreign(array)), np.ascontiguousarray(array))


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("cut", [slice(None), slice(None, None, 2), slice(None, None, -1), slice(0)])
@pytest.mark.parametrize("kind", [np.asarray, Typed])
def test_types_of_ml_dtypes(device, name, cut, kind):
    if is_gpu(device) and not hasattr(torch, name):
        pytest.skip("this PyTorch lacks the type")
    array = np.arange(1, 13, dtype=np.uint16).astype(np.float32).astype(getattr(ml_dtypes, name)).reshape(3, 4)[cut]
    sent = penstock.to_device([kind(array)], device)[0]
    if is_gpu(device):
        assert str(sent.dtype) == f"torch.{name}"
        sent = sent.cpu().view(torch.uint8 if array.itemsize == 1 else torch.uint16).numpy().view(array.dtype)
    assert type(sent) is np.ndarray and sent.dtype == array.dtype and sent.shape == array.shape
    assert sent.tobytes() == array.tobytes() and not np.shares_memory(sent, array)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_8_bit_floats_of_pytorch(device, exchange_api, dtype):
    tensor = torch.arange(12.0).reshape(3, 4).to(dtype).t()
    sent = penstock.to_device(tensor, device)
    assert sent.dtype is dtype and sent.stride() == tensor.stride()
    assert torch.equal(sent.cpu().float(), tensor.float())


def test_arrays_of_jax(device, monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # or it takes most of a GPU for good
    jnp = pytest.importorskip("jax.numpy")
    for dtype in (jnp.float32, jnp.bfloat16, jnp.float8_e4m3fn, jnp.bool_):
        array = jnp.arange(6).reshape(2, 3).astype(dtype)
        back = penstock.to_host(array)
        assert type(back) is np.ndarray and back.dtype == dtype and back.tolist() == np.asarray(array).tolist()
        (sent,) = penstock.feed([{"a": array}], device)
        assert tuple(sent["a"].shape) == (2, 3)
        assert torch.as_tensor(penstock.to_host(sent["a"]).astype(np.float32)).tolist() == array.tolist()


@pytest.mark.parametrize("kind", [Foreign, Typed])
def test_arrays_that_numpy_cannot_read_are_named(kind):
    array = torch.arange(3).bfloat16() if kind is Foreign else np.array([1, None], dtype=object)
    with pytest.raises(TypeError, match=rf"batch\['a'\]: NumPy cannot read this {kind.__name__} \(Unsupp.*Convert it"):
        penstock.to_device({"a": kind(array)}, "host")


class Quantity(np.ndarray):
    """An array with a unit."""

    def __new__(cls, numbers, unit=None):
        made = np.asarray(numbers).view(cls)
        made.unit = unit
        return made

    def __array_finalize__(self, source):
        self.unit = getattr(source, "unit", None)


class Named(np.ndarray):
    pass


def test_an_array_with_a_unit_is_handed_out_as_it_is(device):
    named = np.ones(2).view(Named)
    named.name = "mine"
    for carrier in (Quantity([1.0, 2.0], "m"), named):
        assert penstock.to_device({"d": carrier}, device)["d"] is carrier
        assert penstock.to_host([carrier])[0] is carrier


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_arrays_of_types_without_more_than_numbers_are_sent(device, tmp_path):
    np.save(tmp_path / "a.npy", np.arange(4.0))
    for plain in (np.ones((2, 2)).view(Named), np.matrix([[1.0, 2.0]]), np.load(tmp_path / "a.npy", mmap_mode="r")):
        sent = penstock.to_device(plain, device)
        assert sent is not plain and same(sent, np.asarray(plain))


def test_texts_of_any_type_stay_as_they_are(device):
    for texts in (
        np.array(["a"]),
        np.array([b"a"]),
        *([np.array(["a"], "T")] if hasattr(np.dtypes, "StringDType") else ()),
    ):
        assert penstock.to_device([texts], device)[0] is texts


class Failing:
    def to(self, device):
        raise ValueError("no such unit")


class FailingPin:
    def pin_memory(self):
        raise ValueError("no such unit")


def test_errors_of_objects_that_move_themselves_name_the_place(device, monkeypatch):
    tree = {"a": [1, {"q": Failing()}]}
    if is_gpu(device):
        tree = {"a": [1, {"q": FailingPin()}]}
    with pytest.raises(ValueError, match="no such unit") as caught:
        penstock.to_device(tree, device)
    if sys.version_info >= (3, 11):
        assert caught.value.__notes__ == ["raised for batch['a'][1]['q']"]
        monkeypatch.setattr(_errors.sys, "version_info", (3, 10))
    with pytest.raises(ValueError, match="no such unit") as caught:
        penstock.to_device(tree, device)
    assert str(caught.value.__cause__) == "raised for batch['a'][1]['q']"


def test_before_python_3_11_a_note_is_the_first_cause(monkeypatch):
    monkeypatch.setattr(_errors.sys, "version_info", (3, 10))
    first, then, last = ValueError("first"), KeyError("then"), TypeError("last")
    then.__context__, last.__cause__ = first, then
    _errors.note(last, "here")
    assert last.__cause__ is then and then.__cause__ is None and str(first.__cause__) == "here"


def test_objects_whose_to_takes_the_device_by_name(device):
    storage = torch.ones(2).untyped_storage()
    sent = penstock.to_device([storage], device)[0]
    assert type(sent) is torch.UntypedStorage and sent.device.type == ("cuda" if is_gpu(device) else "cpu")


WITHOUT_NUMPY = """
import sys
sys.modules["numpy"] = None
import torch
from torch.utils.data import DataLoader, TensorDataset
import penstock

def refused(work, error=penstock.Unsupported):
    try:
        work()
    except error as raised:
        assert "NumPy, which is not installed: pip install numpy." in str(raised), raised
    else:
        raise AssertionError

class Foreign:
    def __dlpack__(self, **options): raise AssertionError
    def __dlpack_device__(self): return 1, 0

x = torch.arange(8.0).reshape(4, 2)
there = penstock.to_device({"x": x, "gaps": x[:, ::2]}, "host")
assert torch.equal(penstock.to_host(there)["gaps"], x[:, ::2])
dataset = TensorDataset(x)
fed = penstock.feed(DataLoader(dataset, 2), "host")
assert torch.equal(torch.cat([batch for (batch,) in fed]), x) and any("NumPy" in line for line in fed.describe())
fed = penstock.feed(DataLoader(dataset, 2, sampler=penstock.Sampler(dataset), num_workers=1), "host")
assert torch.equal(torch.cat([batch for (batch,) in fed]), x)
assert torch.equal(torch.cat(list(penstock.Loader(x, batch_size=2, device="host"))), x)
refused(lambda: penstock.Loader({"x": [1, 2]}))
refused(lambda: list(penstock.Loader(x, batch_sampler=[[0]], batch_size=1, device="host")))
refused(lambda: penstock.to_device([Foreign()], "host"))
"""


def test_without_numpy():
    done = run_program(WITHOUT_NUMPY)
    assert done.returncode == 0, done.stderr
