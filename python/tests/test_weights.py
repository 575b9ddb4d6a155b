"""load_safetensors: the bytes, the memory and the errors. test_weight_streams.py has it over the fake driver."""

import gc
import json
import os
import pathlib
import signal
import threading
import time

import numpy as np
import pytest
import torch

import penstock
import safetensors_files as files
from penstock import _core, _weights
from penstock._engines import engine_for
from support import forgotten, place

DTYPES = {
    **{"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "BOOL": torch.bool},
    **{"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8},
    **{"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"},
    **{"U16": "uint16", "U32": "uint32", "U64": "uint64"},
}
DTYPES = {name: getattr(torch, dtype, None) if isinstance(dtype, str) else dtype for name, dtype in DTYPES.items()}
DTYPES = {name: dtype for name, dtype in DTYPES.items() if dtype is not None}


def bytes_of(tensor):
    """The bytes of PyTorch's tensor."""
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def expect(loaded, tensors, device="host"):
    assert list(loaded) == list(tensors)
    for name, (dtype, shape, data) in tensors.items():
        tensor = loaded[name]
        assert type(tensor) is torch.Tensor and tensor.is_contiguous()
        assert (tensor.dtype, tuple(tensor.shape)) == (DTYPES[dtype], shape)
        assert tensor.device.type == torch.device(place(device)).type
        assert bytes_of(tensor) == data, name
        if data:
            assert tensor.data_ptr() % 512 == 0


def test_every_type_and_shape(device, random, tmp_path):
    tensors = files.mixed(random, tuple(DTYPES))
    path = files.write(tmp_path / "model.safetensors", tensors, {"format": "pt"})
    expect(penstock.load_safetensors(path, device), tensors, device)
    expect(penstock.load_safetensors(str(path), device=device), tensors, device)


@pytest.mark.parametrize("count", [1, 4096, 1_000_003, 20_000_001])
def test_sizes_around_chunks_and_huge_pages(device, random, tmp_path, count):
    tensors = {"first": ("U8", (1,), b"a"), "large": ("U8", (count,), random.bytes(count)), "last": ("U8", (), b"b")}
    expect(penstock.load_safetensors(files.write(tmp_path / "a", tensors), device), tensors, device)


def test_many_files(device, random, tmp_path):
    parts = [files.mixed(random, ("F32", "BF16", "U8"), f"{i}.") for i in range(30)]
    paths = [files.write(tmp_path / f"part-{i}", part) for i, part in enumerate(parts)]
    everything = {name: tensor for part in parts for name, tensor in part.items()}
    expect(penstock.load_safetensors(paths, device), everything, device)
    expect(penstock.load_safetensors(iter(map(str, paths)), device), everything, device)
    names = [name for name in everything if random.random() < 0.1]
    chosen = {name: everything[name] for name in names}
    expect(penstock.load_safetensors(paths, device, names=reversed(names)), chosen, device)


def test_some_names(device, random, tmp_path):
    tensors = files.mixed(random, tuple(DTYPES))
    path = files.write(tmp_path / "model", tensors)
    for names in [["F32.3"], ["BF16.", "F64.129x33", "I8.0"], {"U8.17x3", "F16.5x0x2"}, dict.fromkeys(tensors), []]:
        chosen = {name: tensor for name, tensor in tensors.items() if name in names}
        expect(penstock.load_safetensors(path, device, names), chosen, device)


def test_a_file_of_no_tensors_is_an_empty_dict(device, tmp_path):
    assert penstock.load_safetensors(files.write(tmp_path / "none", {}, {"a": "b"}), device) == {}


def test_the_tensors_of_a_file_share_one_block(device, random, tmp_path):
    tensors = files.mixed(random, ("F32", "U8"))
    loaded = penstock.load_safetensors([files.write(tmp_path / "a", tensors)], device)
    full = [tensor for tensor in loaded.values() if tensor.numel()]
    begin, end = full[0].data_ptr(), full[-1].data_ptr() + full[-1].nbytes
    assert end - begin < sum(tensor.nbytes for tensor in full) + 512 * len(tensors)
    assert all(begin <= tensor.data_ptr() < end for tensor in full)
    kept, data = loaded["F32.17x3"], tensors["F32.17x3"][2]
    loaded.clear()
    del full
    gc.collect()
    noise = [torch.randint(0, 255, (kept.nbytes,), dtype=torch.uint8, device=kept.device) for _ in range(100)]
    assert bytes_of(kept) == data
    del noise
    kept.zero_()  # its memory is its own
    assert not kept.any()


def test_tensors_may_be_trained(device, random, tmp_path):
    path = files.write(tmp_path / "a", {"w": ("F32", (4, 4), np.ones((4, 4), "<f4").tobytes())})
    weight = penstock.load_safetensors(path, device)["w"].requires_grad_()
    (weight * 3).sum().backward()
    assert torch.equal(weight.grad.cpu(), torch.full((4, 4), 3.0))


def test_names_that_no_file_holds(tmp_path):
    path = files.write(tmp_path / "model", {f"layers.{i}.weight": ("F32", (0,), b"") for i in range(4)})
    with pytest.raises(penstock.InvalidArgument, match=r"'layer.2.weight'.*'layers.2.weight'"):
        penstock.load_safetensors(path, "host", ["layers.1.weight", "layer.2.weight"])
    with pytest.raises(penstock.InvalidArgument, match=r"'something'.*4 others"):
        penstock.load_safetensors(path, "host", ["something"])


def test_a_name_that_two_files_hold(tmp_path):
    paths = [files.write(tmp_path / name, {name: ("F32", (0,), b""), "w": ("F32", (0,), b"")}) for name in "ab"]
    with pytest.raises(penstock.Error, match=rf"{paths[0]} and {paths[1]} both hold a tensor 'w'"):
        penstock.load_safetensors(paths, "host")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "files holds no path"),
        ((7,), "files is a path or an iterable"),
        ((["a", 7],), "files is a path or an iterable"),
        (("a", "host", "weight"), "names is an iterable"),
        (("a", "host", [7]), "names is an iterable"),
        (("a", "nowhere"), "nowhere"),
    ],
)
def test_arguments_without_a_meaning(arguments, message):
    with pytest.raises(penstock.InvalidArgument, match=message):
        penstock.load_safetensors(*arguments)


def header(*offsets, dtype="U8", name="x"):
    entry = {"dtype": dtype, "shape": [3], "data_offsets": offsets}
    return json.dumps({name: entry}).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "byte 0"),
        (files.raw(header(0, 3), b"abc", 2**63), "a length of 9223372036854775808"),
        (files.raw(header(0, 3), b"ab"), r"\(x\), byte .*the end of the file"),
        (files.raw(header(0, 3), b"abcd"), "1 bytes more"),
        (files.raw(header(1, 4), b"abcd"), "a gap before 'x'"),
        (files.raw(header(0, 4), b"abcd"), r"\(x\), byte"),
        (files.raw(header(0, 3, dtype="F4"), b"abc"), r"\(x\), byte 8: .*F4"),
        (files.raw(header(0, 3, dtype="C64"), b"abc"), "C64"),
        (files.raw(b"[]", b""), "a JSON object"),
    ],
)
def test_files_that_are_not_sound(tmp_path, content, message):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    with pytest.raises(penstock.Error, match=rf"{path}.*{message}"):
        penstock.load_safetensors([path], "host")


def test_a_type_that_is_not_known_is_left_out(device, tmp_path):
    entries = {
        "x": {"dtype": "C64", "shape": [1], "data_offsets": [0, 8]},
        "y": {"dtype": "U8", "shape": [3], "data_offsets": [8, 11]},
    }
    path = tmp_path / "model.safetensors"
    path.write_bytes(files.raw(json.dumps(entries).encode(), b"12345678abc"))
    with pytest.raises(penstock.Error, match=rf"{path} \(x\), byte 8: .*C64"):
        penstock.load_safetensors(path, device, names=["x", "y"])
    assert penstock.load_safetensors(path, device, names=["y"])["y"].cpu().tolist() == list(b"abc")


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(penstock.Error, match="missing cannot be opened: No such file"):
        penstock.load_safetensors(tmp_path / "missing", "host")
    with pytest.raises(penstock.Error, match="not a regular file"):
        penstock.load_safetensors(tmp_path, "host")


def test_a_file_that_is_cut_short_meanwhile(device, random, tmp_path):
    data = random.bytes(5_000_000)
    path = files.write(tmp_path / "model", {"a": ("U8", (1000,), data[:1000]), "b": ("U8", (4_999_000,), data[1000:])})
    size = path.stat().st_size
    for left in [size - 1, size // 2, size - 5_000_000, 3]:
        path.write_bytes(files.image({"a": ("U8", (1000,), data[:1000]), "b": ("U8", (4_999_000,), data[1000:])}))
        load = _core.WeightLoad([engine_for(device)], None, None, [str(path)], None)
        os.truncate(path, left)
        load.start()
        name, end = ("b", size) if left > size - 4_999_000 else ("a", size - 4_999_000)
        if left > size - 4_999_000:
            message = f"{path} was cut short .* byte {left}, and tensor '{name}' should end at byte {end}"
        else:  # threads may see the second tensor first
            message = f"{path} was cut short .* byte {left}, and tensor '[ab]' should end"
        with pytest.raises(penstock.Error, match=message):
            load.wait()
        del load


def test_files_that_are_on_the_disk_alone(device, random, tmp_path):
    tensors = files.mixed(random, tuple(DTYPES)) | {"large": ("U8", (9_000_001,), random.bytes(9_000_001))}
    path = files.write(tmp_path / "model", tensors)
    for names in (None, ["large"], list(tensors)[:3]):
        if not forgotten(path):
            pytest.skip("this file system keeps its files in memory")
        chosen = tensors if names is None else {name: tensors[name] for name in tensors if name in names}
        expect(penstock.load_safetensors(path, device, names), chosen, device)


def test_a_file_on_the_disk_alone_that_is_cut_short_meanwhile(device, random, tmp_path):
    data = random.bytes(5_000_000)
    tensors = {"a": ("U8", (1_000_000,), data[:1_000_000]), "b": ("U8", (4_000_000,), data[1_000_000:])}
    path = tmp_path / "model"
    for cut, name in [(1, "b"), (3_999_999, "b"), (4_000_001, "[ab]")]:
        files.write(path, tensors)
        size = path.stat().st_size
        if not forgotten(path):
            pytest.skip("this file system keeps its files in memory")
        load = _core.WeightLoad([engine_for(device)], None, None, [str(path)], None)
        os.truncate(path, size - cut)
        load.start()
        message = f"{path} was cut short .* byte {size - cut}, and tensor '{name}' should end at byte"
        with pytest.raises(penstock.Error, match=message):
            load.wait()
        del load


def test_ctrl_c_ends_the_wait_and_the_load(ctrl_c):
    class Load:
        cancelled = threading.Event()

        def wait(self):
            os.kill(os.getpid(), signal.SIGINT)
            assert self.cancelled.wait(60)

        def cancel(self):
            self.cancelled.set()

    load = Load()
    with pytest.raises(KeyboardInterrupt):
        _weights._wait(load, load.wait)
    while any(thread.name == "penstock-load" for thread in threading.enumerate()):
        time.sleep(0.001)
    assert Load.cancelled.is_set()


def test_a_load_that_is_cancelled_reads_no_more(device, random, tmp_path):
    path = files.write(tmp_path / "model", {"a": ("U8", (1000,), random.bytes(1000))})
    load = _core.WeightLoad([engine_for(device)], None, None, [str(path)], None)
    load.cancel()
    load.start()
    load.cancel()
    if not device.startswith("cuda"):
        with pytest.raises(penstock.Closed, match="was stopped"):
            load.wait()


def test_a_load_may_be_dropped_at_any_step(device, random, tmp_path):
    path = files.write(tmp_path / "model", {"a": ("U8", (3_000_000,), random.bytes(3_000_000))})
    for steps in range(4):
        load = _core.WeightLoad([engine_for(device)], None, None, [str(path)], None)
        for step in ["start", "wait", "finish"][:steps]:
            getattr(load, step)()
        del load


def test_bytes_paths_and_path_likes(tmp_path):
    path = files.write(tmp_path / "model", {"w": ("U8", (1,), b"a")})
    assert isinstance(path, pathlib.Path)
    named = os.fsencode(tmp_path) + b"/\xff.safetensors"
    os.rename(files.write(tmp_path / "other", {"x": ("U8", (1,), b"b")}), named)
    assert list(penstock.load_safetensors([path, named], "host")) == ["w", "x"]
    for form in [path, str(path), [str(path)], (path,), [os.fsencode(path)]]:
        assert list(penstock.load_safetensors(form, "host")) == ["w"]
