"""Writes and reads .safetensors files by hand: eight bytes of the length of the header, that in JSON, the data."""

import json
import pathlib

import numpy as np

# NumPy's type for each type of the format; bytes for those that NumPy lacks.
TYPES = {
    **{"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "V2", "F8_E4M3": "V1", "F8_E5M2": "V1", "F8_E8M0": "V1"},
    **{"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1"},
    **{"BOOL": "?", "C64": "V8", "F8_E4M3FNUZ": "V1", "F8_E5M2FNUZ": "V1"},
}
SHAPES = [(), (3,), (0,), (5, 0, 2), (17, 3), (1, 1, 7), (129, 33)]


def make(dtype, shape, random):
    """Random bytes of a tensor."""
    count = int(np.prod(shape, dtype=np.int64)) * np.dtype(TYPES[dtype]).itemsize
    return random.integers(0, 2 if dtype == "BOOL" else 256, count, dtype=np.uint8).tobytes()


def mixed(random, dtypes=tuple(TYPES), prefix=""):
    """Tensors of every type and shape, by name: type, shape and bytes. Their offsets in a file are unaligned."""
    tensors = {}
    for dtype in dtypes:
        for shape in SHAPES:
            tensors[f"{prefix}{dtype}.{'x'.join(map(str, shape))}"] = dtype, shape, make(dtype, shape, random)
    return tensors


def image(tensors, metadata=None):
    header, data = {} if metadata is None else {"__metadata__": metadata}, b""
    for name, (dtype, shape, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    return raw(json.dumps(header).encode(), data)


def raw(header, data, length=None):
    return (len(header) if length is None else length).to_bytes(8, "little") + header + data


def write(path, tensors, metadata=None):
    path.write_bytes(image(tensors, metadata))
    return path


def content(path):
    """The type, shape and bytes of each tensor in a file, by name, and its metadata."""
    data = pathlib.Path(path).read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, data = json.loads(data[8 : 8 + length]), data[8 + length :]
    metadata = header.pop("__metadata__", None)
    read = {
        name: (entry["dtype"], tuple(entry["shape"]), data[slice(*entry["data_offsets"])])
        for name, entry in header.items()
    }
    return read, metadata
