#!/usr/bin/env python3
"""Writes the seeds under fuzz/corpus: small files, some right (ok-*), the others wrong in one way each (bad-*).

The fuzzers start from them, and tests/data/corpus_test.cpp expects of each what its name says. Only the packed bytes
depend on the zlib at hand. Usage: make_corpus.py [DIRECTORY]
"""

import gzip
import pathlib
import struct
import sys


def npy(descr="'<f4'", fortran="False", shape="(2, 3)", data=24, version=(1, 0), text=None, length=None, magic=b"\x93NUMPY"):
    if text is None:
        text = f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}"
    size_format, size_bytes = ("<H", 2) if version[0] == 1 else ("<I", 4)
    padding = -(len(magic) + 2 + size_bytes + len(text) + 1) % 64
    header = text.encode() + b" " * padding + b"\n"
    size = struct.pack(size_format, len(header) if length is None else length)
    return magic + bytes(version) + size + header + bytes(i % 251 for i in range(data))


def idx(code=0x08, shape=(3, 4), data=12, zeros=b"\0\0", axes=None):
    head = zeros + bytes([code, len(shape) if axes is None else axes])
    return head + b"".join(struct.pack(">I", extent) for extent in shape) + bytes(i % 251 for i in range(data))


def packed(content):
    return gzip.compress(content, mtime=0)


NPY = {
    "ok-float32": npy(),
    "ok-labels-int64": npy("'<i8'", shape="(5,)", data=40),
    "ok-bool": npy("'|b1'", shape="(7,)", data=7),
    "ok-float16": npy("'<f2'", shape="(2, 2, 2)", data=16),
    "ok-single-byte-big-endian": npy("'>u1'", shape="(4, 2)", data=8),
    "ok-version-2": npy("'<u2'", shape="(3, 1)", data=6, version=(2, 0)),
    "ok-version-3": npy("'<f8'", shape="(2,)", data=16, version=(3, 0)),
    "ok-python-2-longs": npy(shape="(2L, 3L)"),
    "ok-double-quotes": npy(text='{"shape": (2, 3), "fortran_order": False, "descr": "<f4"}'),
    "bad-empty": b"",
    "bad-magic": npy(magic=b"\x93NUMPZ"),
    "bad-only-magic": b"\x93NUMPY",
    "bad-no-length": b"\x93NUMPY\x01\x00\x40",
    "bad-version-4": npy(version=(4, 0)),
    "bad-minor-version": npy(version=(1, 7)),
    "bad-length-past-end": npy(length=60000),
    "bad-length-huge": npy(version=(2, 0), length=0xFFFFFFFF),
    "bad-length-cuts-dictionary": npy(length=20),
    "bad-length-zero": npy(length=0),
    "bad-big-endian": npy("'>f4'"),
    "bad-object": npy("'|O'", shape="(3,)", data=24),
    "bad-structured": npy("[('x', '<f4'), ('y', '<i4')]", shape="(3,)", data=24),
    "bad-complex": npy("'<c8'", shape="(3,)", data=24),
    "bad-string": npy("'<U4'", shape="(3,)", data=48),
    "bad-datetime": npy("'<M8[ns]'", shape="(3,)", data=24),
    "bad-empty-descr": npy("''"),
    "bad-fortran": npy(fortran="True"),
    "bad-fortran-word": npy(fortran="Maybe"),
    "bad-scalar": npy(shape="()", data=4),
    "bad-zero-samples": npy(shape="(0, 3)", data=0),
    "bad-zero-bytes": npy(shape="(3, 0)", data=0),
    "bad-shape-overflows-number": npy(shape="(99999999999999999999999,)"),
    "bad-shape-overflows-product": npy(shape="(4294967296, 4294967296, 16)"),
    "bad-shape-overflows-bytes": npy("'<f8'", shape="(4611686018427387904,)"),
    "bad-negative": npy(shape="(-2, 3)"),
    "bad-shape-float": npy(shape="(2.0, 3)"),
    "bad-shape-list": npy(shape="[2, 3]"),
    "bad-shape-unclosed": npy(shape="(2, 3"),
    "bad-too-many-axes": npy(shape="(" + "1, " * 65 + ")", data=4),
    "bad-truncated": npy(data=23),
    "bad-too-long": npy(data=25),
    "bad-not-a-dictionary": npy(text="['descr', '<f4']"),
    "bad-missing-key": npy(text="{'descr': '<f4', 'shape': (2, 3)}"),
    "bad-extra-key": npy(text="{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), 'x': 1}"),
    "bad-key-twice": npy(text="{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}"),
    "bad-unclosed-string": npy(text="{'descr': '<f4, fortran_order"),
    "bad-after-dictionary": npy(text="{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)} 7"),
    "bad-no-commas": npy(text="{'descr': '<f4' 'fortran_order': False 'shape': (2, 3)}"),
}

IDX = {
    "ok-uint8": idx(),
    "ok-labels": idx(shape=(5,), data=5),
    "ok-int8": idx(0x09, (2, 2, 2), 8),
    "ok-int16": idx(0x0B, (3,), 6),
    "ok-int32": idx(0x0C, (2, 2), 16),
    "ok-float32": idx(0x0D, (2,), 8),
    "ok-float64": idx(0x0E, (1,), 8),
    "bad-empty": b"",
    "bad-three-bytes": b"\0\0\x08",
    "bad-magic": idx(zeros=b"\0\1"),
    "bad-type": idx(0x0A),
    "bad-no-axes": idx(shape=(), data=0),
    "bad-header-cut": idx(axes=9, data=0),
    "bad-zero-samples": idx(shape=(0, 4), data=0),
    "bad-zero-bytes": idx(shape=(4, 0), data=0),
    "bad-overflow": idx(shape=(0xFFFFFFFF,) * 3, data=8),
    "bad-many-axes": idx(shape=(2,) * 255, data=8),
    "bad-truncated": idx(data=11),
    "bad-too-long": idx(data=13),
    "bad-header-lies": idx(shape=(0x7FFFFFFF, 4), data=12),
}

# Wrong for an IDX file in gzip format, besides what is wrong when unpacked.
GZ = {
    "ok-two-members": packed(idx()[:9]) + packed(idx()[9:]),
    "ok-empty-member": packed(b"") + packed(idx()),
    "ok-ratio": packed(idx(shape=(64, 1024), data=0) + bytes(64 * 1024)),
    "bad-empty": b"",
    "bad-only-magic": b"\x1f\x8b",
    "bad-cut": packed(idx())[:-9],
    "bad-no-checksum": packed(idx())[:-8],
    "bad-checksum": packed(idx())[:-5] + b"\x55" + packed(idx())[-4:],
    "bad-length-field": packed(idx())[:-1] + b"\x55",
    "bad-garbage-after": packed(idx()) + b"garbage",
    "bad-method": b"\x1f\x8b\x09" + packed(idx())[3:],
}
for name, content in IDX.items():
    GZ.setdefault(name, packed(content))

if __name__ == "__main__":
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "corpus")
    for folder, files in {"npy": NPY, "idx": IDX, "idx_gz": GZ}.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (root / folder / name).write_bytes(content)
