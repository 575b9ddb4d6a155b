"""load_safetensors: the bytes, the memory and the errors. test_weight_streams.py has it over the fake driver."""

import errno
import gc
import io
import json
import os
import pathlib
import pickle
import signal
import threading
import time

import numpy as np
import pytest
import torch

import penstock
import safetensors_files as files
from penstock import _core
from penstock._destination import Destination
from penstock._move import weights as _weights
from support import forgotten, place

DTYPES = {
    **{"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "BOOL": torch.bool},
    **{"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8},
    **{"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"},
    **{"F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz", "C64": torch.complex64},
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
        ((io.BytesIO(),), "an open file: pass its path"),
        ((b"content",), "files is a path, not bytes"),
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
        (files.raw(header(0, 3, dtype="F4"), b"abc"), r"\(x\), byte 8: .*whole bytes, found 12 bits"),
        (files.raw(header(0, 3, dtype="F9"), b"abc"), r"\(x\), byte 8: .*F9"),
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
        "x": {"dtype": "C256", "shape": [1], "data_offsets": [0, 8]},
        "y": {"dtype": "U8", "shape": [3], "data_offsets": [8, 11]},
    }
    path = tmp_path / "model.safetensors"
    path.write_bytes(files.raw(json.dumps(entries).encode(), b"12345678abc"))
    with pytest.raises(penstock.Error, match=rf"{path} \(x\), byte 8: .*C256"):
        penstock.load_safetensors(path, device, names=["x", "y"])
    assert penstock.safetensors_info(path).tensors["x"] == ("C256", (1,), 8, str(path))
    assert penstock.load_safetensors(path, device, names=["y"])["y"].cpu().tolist() == list(b"abc")


def test_files_that_are_not_there(tmp_path):
    missing = tmp_path / "missing"
    for call in (penstock.safetensors_info, lambda path: penstock.load_safetensors(path, "host")):
        with pytest.raises(FileNotFoundError, match="missing cannot be opened: No such file") as caught:
            call(missing)
        for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
            assert isinstance(error, penstock.Error) and isinstance(error, FileNotFoundError)
            assert (error.errno, error.filename) == (errno.ENOENT, str(missing)) and str(error) == str(caught.value)
        with pytest.raises(FileNotFoundError, match="holds no \\.safetensors file"):
            call(tmp_path)
        with pytest.raises(OSError, match="not a regular file"):
            call("/dev/null")


def header_of(entry='"dtype": "U8", "shape": [3], "data_offsets": [0, 3]', rest=""):
    return f'{{"x": {{{entry}}}{rest}}}'


U8 = '"dtype": "U8", "shape": [3], "data_offsets": [0, 3]'


TAKEN = [
    header_of(),
    header_of() + "  \n",
    " " + header_of(),
    header_of(U8 + ', "quant": {"by": [1, null, {"a": 1.5}]}'),
    header_of(U8 + ', "q": 1, "q": 2'),
    *(header_of(rest=f', "__metadata__": {value}') for value in ("null", "{}", '{"a": "b"}')),
    '{"\\u0078": {"dtype": "\\u00558", "shape": [3], "data_offsets": [0, 3]}}',
    '{"": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}}',
    header_of('"dtype": "F4", "shape": [6], "data_offsets": [0, 3]'),
]
REFUSED = [
    *(header_of(rest=f', "__metadata__": {value}') for value in ("[]", '"x"', '{"a": 1}', '{"a": null}', '{"a": {}}')),
    header_of(rest=', "__metadata__": {}, "__metadata__": {}'),
    '{"__metadata__": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}}',
    "\ufeff" + header_of(),
    *(header_of() + end for end in ("\0\0", "x", "}", "\f", "// x")),
    header_of(U8 + ', "q": NaN'),
    header_of(U8 + ', "q": 1e999'),
    header_of(U8 + ', "dtype": "U8"'),
    header_of(U8 + ', "shape": [3]'),
    header_of('"dtype": "U8", "shape": [3], "data_offsets": [-0, 3]'),
    header_of('"dtype": "U8", "shape": [3.0], "data_offsets": [0, 3]'),
    header_of('"dtype": "U8", "shape": null, "data_offsets": [0, 3]'),
    header_of('"dtype": "u8", "shape": [3], "data_offsets": [0, 3]'),
    header_of('"dtype": "F4", "shape": [2, 3, 1], "data_offsets": [0, 3]'),
    header_of('"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]'),
    '{"x": null}',
    '{"\\ud800": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}}',
    '{"a\n": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}}',
]


@pytest.fixture(params=[*TAKEN, *REFUSED])
def header_file(request, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(files.raw(request.param.encode(), b"abc"))
    return path, request.param in TAKEN


def test_headers_that_are_taken_and_refused(header_file):
    path, is_taken = header_file
    if is_taken:
        (tensor,) = penstock.load_safetensors(path, "host").values()
        assert tensor.view(torch.uint8).tolist() == list(b"abc")
    else:
        with pytest.raises(penstock.Error):
            penstock.load_safetensors(path, "host")


def test_safetensors_takes_and_refuses_the_same_headers(header_file):
    load_file = pytest.importorskip("safetensors.torch").load_file
    path, is_taken = header_file
    if not is_taken:
        with pytest.raises(Exception):  # noqa: B017
            load_file(path)
        return
    ours, theirs = penstock.load_safetensors(path, "host"), load_file(path)
    assert list(ours) == list(theirs)
    for name, tensor in ours.items():
        assert (tensor.dtype, tensor.shape) == (theirs[name].dtype, theirs[name].shape)


def test_four_bits_and_what_torch_lacks(device, tmp_path):
    path = files.write(tmp_path / "a", {"four": ("F4", (2, 4), b"\x12\x34\x56\x78"), "six": ("F6_E3M2", (4,), b"abc")})
    with pytest.raises(penstock.Unsupported, match="'six' is of type F6_E3M2: this PyTorch does not have it"):
        penstock.load_safetensors(path, device)
    if hasattr(torch, "float4_e2m1fn_x2"):
        four = penstock.load_safetensors(path, device, ["four"])["four"]
        assert (four.dtype, tuple(four.shape)) == (torch.float4_e2m1fn_x2, (2, 2))
        assert bytes_of(four) == b"\x12\x34\x56\x78"
    odd = files.write(tmp_path / "b", {"four": ("F4", (2, 1), b"a")})
    with pytest.raises(penstock.Unsupported, match="last axis must be even"):
        penstock.load_safetensors(odd, device)


def test_floats_are_converted(device, random, tmp_path):
    values = np.array([1 + 2**-8, 1 + 3 * 2**-8, -1e39, 0.1, np.nan])  # halfway between two of bfloat16, and too large
    tensors = {name: (name, (4, 3), files.make(name, (4, 3), random)) for name in DTYPES if name != "F8_E8M0"}
    tensors["values"] = "F64", (5,), values.tobytes()
    path = files.write(tmp_path / "a", tensors)
    stored = penstock.load_safetensors(path, device)
    for dtype in (torch.bfloat16, "float16", np.float32, np.dtype(np.float64)):
        name = str(dtype).removeprefix("torch.") if isinstance(dtype, str | torch.dtype) else np.dtype(dtype).name
        loaded = penstock.load_safetensors(path, device, dtype=dtype)
        assert list(loaded) == list(tensors)
        for key, tensor in stored.items():
            wanted = getattr(torch, name) if tensor.is_floating_point() else tensor.dtype
            assert (loaded[key].dtype, loaded[key].device) == (wanted, tensor.device)
            assert bytes_of(loaded[key]) == bytes_of(tensor.to(wanted)), key
    rounded = penstock.load_safetensors(path, device, ["values"], dtype="bfloat16")["values"]
    assert rounded[:3].tolist() == [1, 1 + 2**-6, -np.inf]


def test_converted_tensors_keep_no_block(device, random, tmp_path):
    kinds = {"half": "F16", "whole": "I64", "flag": "BOOL"}
    path = files.write(
        tmp_path / "a", {name: (dtype, (8,), files.make(dtype, (8,), random)) for name, dtype in kinds.items()}
    )
    for dtype, owned_by_torch in (("float32", True), ("float16", False)):
        loaded = penstock.load_safetensors(path, device, dtype=dtype)
        assert all(tensor.untyped_storage().resizable() is owned_by_torch for tensor in loaded.values())


def test_types_that_are_not_converted(device, tmp_path):
    path = files.write(tmp_path / "a", {"w": ("F32", (1,), bytes(4))})
    for dtype in ("int8", torch.int32, np.complex64, "half", 7):
        with pytest.raises(penstock.InvalidArgument, match="dtype"):
            penstock.load_safetensors(path, device, dtype=dtype)
    for name in ("float128", "float4_e2m1fn_x2", "float_power"):
        with pytest.raises(penstock.Unsupported, match=f"Converting to {name}"):
            penstock.load_safetensors(path, device, dtype=name)
    four = files.write(tmp_path / "b", {"four": ("F4", (2,), b"a")})
    if hasattr(torch, "float4_e2m1fn_x2"):
        with pytest.raises(penstock.Unsupported, match="'four' is of type F4, which PyTorch does not convert"):
            penstock.load_safetensors(four, device, dtype="float32")


def test_many_tensors_are_read_in_a_few_steps(tmp_path):
    # The header's parser must not go through all earlier tensors for each one: that would take minutes here.
    count = 300_000
    entries = ",".join(f'"{i}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}' for i in range(count))
    path = tmp_path / "many.safetensors"
    path.write_bytes(files.raw(f"{{{entries}}}".encode(), b""))
    assert list(penstock.load_safetensors(path, "host", names=["299999"])) == ["299999"]


def test_rows_of_the_first_axis(device, tmp_path):
    data = np.arange(60, dtype="<f4")
    one = files.write(tmp_path / "one", {"w": ("F32", (20, 3), data.tobytes()), "v": ("U8", (3,), b"abc")})
    two = files.write(tmp_path / "two", {"f8": ("F8_E5M2", (6, 2), bytes(range(12)))})
    whole = data.reshape(20, 3)
    for part in (slice(2, 7), slice(None, 4), slice(-2, None), slice(5, 5), slice(0, 10**12), slice(7, 3), None):
        loaded = penstock.load_safetensors([one, two], device, names={"w": part, "v": None})
        assert list(loaded) == ["w", "v"]
        np.testing.assert_array_equal(loaded["w"].cpu().numpy(), whole[slice(None) if part is None else part])
        assert loaded["v"].cpu().tolist() == list(b"abc")
    assert bytes_of(penstock.load_safetensors([one, two], device, names={"f8": slice(1, 3)})["f8"]) == bytes(
        range(2, 6)
    )
    for part in (3, slice(0, 4, 2), slice("a", None), (0, 4), torch.zeros(2)):
        with pytest.raises(penstock.InvalidArgument, match=r"names\['w'\] is a slice"):
            penstock.load_safetensors(one, device, names={"w": part})
    scalar = files.write(tmp_path / "scalar", {"s": ("U8", (), b"a")})
    with pytest.raises(penstock.InvalidArgument, match="'s' of shape scalar has no rows"):
        penstock.load_safetensors(scalar, device, names={"s": slice(0, 1)})


def test_what_headers_say(tmp_path):
    one = files.write(tmp_path / "a.safetensors", {"w": ("BF16", (4, 3), bytes(24))}, {"format": "pt", "step": "1"})
    two = files.write(tmp_path / "b.safetensors", {"s": ("F8_E4M3", (), b"a")}, {"step": "2"})
    info = penstock.safetensors_info([one, two])
    assert info.tensors == {"w": ("BF16", (4, 3), 24, str(one)), "s": ("F8_E4M3", (), 1, str(two))}
    assert info.metadata == {"format": "pt", "step": "2"} and info.nbytes == 25
    assert repr(info) == "<penstock.SafetensorsInfo: 2 tensors, 25 bytes, 2 files>"
    assert penstock.safetensors_info(one).tensors["w"].shape == (4, 3)
    assert penstock.safetensors_info(tmp_path).tensors == info.tensors


def test_an_index_or_a_folder_stands_for_its_shards(device, tmp_path):
    parts = {name: {name: ("U8", (2,), name.encode() * 2)} for name in "abc"}
    for name, part in parts.items():
        files.write(tmp_path / f"{name}.safetensors", part)
    index = tmp_path / "model.safetensors.index.json"
    everything = parts["a"] | parts["b"] | parts["c"]
    expect(penstock.load_safetensors(tmp_path, device), everything, device)
    shards = {"weight_map": {"b": "b.safetensors", "a": "a.safetensors"}, "metadata": {"total_size": 4}}
    index.write_text(json.dumps(shards))
    for path in (index, str(tmp_path), [tmp_path]):
        expect(penstock.load_safetensors(path, device), parts["a"] | parts["b"], device)
    expect(penstock.load_safetensors([index, tmp_path / "c.safetensors"], device), everything, device)
    index.write_text("{}")
    with pytest.raises(penstock.Error, match=r"index\.json, byte 0: expected an index.*'weight_map'"):
        penstock.load_safetensors(index, device)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:a\nsize 3\n", "a git-lfs pointer.*git lfs pull"),
        (b"<!doctype html>\n<html><head>", "a page in HTML"),
        (b'{"metadata": {}, "weight_map": {}}', "a text in JSON.*index"),
        (pickle.dumps({"a": [1.0] * 5}), "a pickle.*torch.load"),
        (b"", "byte 0: expected the header's length"),
    ],
)
def test_files_of_another_kind_are_named(tmp_path, content, says):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(penstock.Error, match=f"{path}, byte 0.*{says}" if content else f"{path}, {says}"):
        penstock.load_safetensors(path, "host")


def test_a_file_of_torch_save_is_named(tmp_path):
    torch.save({"a": torch.zeros(2)}, tmp_path / "model.bin")
    with pytest.raises(penstock.Error, match=r"a \.zip archive, as torch\.save"):
        penstock.load_safetensors(tmp_path / "model.bin", "host")


def test_a_file_that_is_cut_short_meanwhile(device, random, tmp_path):
    data = random.bytes(5_000_000)
    path = files.write(tmp_path / "model", {"a": ("U8", (1000,), data[:1000]), "b": ("U8", (4_999_000,), data[1000:])})
    size = path.stat().st_size
    for left in [size - 1, size // 2, size - 5_000_000, 3]:
        path.write_bytes(files.image({"a": ("U8", (1000,), data[:1000]), "b": ("U8", (4_999_000,), data[1000:])}))
        load = _core.WeightLoad(Destination(device).native, [str(path)], None)
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
        load = _core.WeightLoad(Destination(device).native, [str(path)], None)
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
    load = _core.WeightLoad(Destination(device).native, [str(path)], None)
    load.cancel()
    load.start()
    load.cancel()
    if not device.startswith("cuda"):
        with pytest.raises(penstock.Closed, match="was stopped"):
            load.wait()


def test_a_load_may_be_dropped_at_any_step(device, random, tmp_path):
    path = files.write(tmp_path / "model", {"a": ("U8", (3_000_000,), random.bytes(3_000_000))})
    for steps in range(4):
        load = _core.WeightLoad(Destination(device).native, [str(path)], None)
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
