#!/usr/bin/env python3
"""Writes the fuzzers' seeds: small files, some right (ok-*), the others wrong in one way each (bad-*).

The fuzzers start from them, and tests/data/corpus_test.cpp, doctor/tests/torch_trace_test.cpp and
doctor/tests/recorder/recording_test.cpp expect of each what its name says.
Usage: make_corpus.py DIRECTORY
"""

import base64
import io
import json
import pathlib
import struct
import sys
import zipfile
import zlib


def npy(descr="'<f4'", fortran="False", shape="(2, 3)", data=24, version=(1, 0), text=None, length=None, magic=b"\x93NUMPY"):
    if text is None:
        text = f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}"
    size_format, size_bytes = ("<H", 2) if version[0] == 1 else ("<I", 4)
    padding = -(len(magic) + 2 + size_bytes + len(text) + 1) % 64
    header = text.encode() + b" " * padding + b"\n"
    size = struct.pack(size_format, len(header) if length is None else length)
    return magic + bytes(version) + size + header + bytes(i % 251 for i in range(data))


def npz(members, method=zipfile.ZIP_STORED, zip64=False, comment=b""):
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", method) as out:
        for name, content in members:
            info = zipfile.ZipInfo(name)
            info.compress_type = method
            with out.open(info, "w", force_zip64=zip64) as member:
                member.write(content)
        out.comment = comment
    return archive.getvalue()


def patched(content, signature, at, number):
    """The archive with other bytes at `at` of the first record that begins with `signature`."""
    begin = content.index(signature) + at
    return content[:begin] + number + content[begin + len(number):]


def npz64(content):
    """The archive with its end record's numbers in a zip64 one."""
    begin = content.rindex(b"PK\5\6")
    entries, size, offset = struct.unpack("<HII", content[begin + 10:begin + 20])
    end = struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, entries, entries, size, offset)
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, begin, 1)
    ones = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return content[:begin] + end + locator + ones


def safetensors(tensors=None, data=30, text=None, length=None):
    """`tensors` maps a name to its dtype, shape and data_offsets."""
    if text is None:
        text = json.dumps({name: dict(zip(("dtype", "shape", "data_offsets"), entry)) for name, entry in tensors.items()})
    header = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + bytes(i % 251 for i in range(data))


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

IMAGES = ("images.npy", npy("'|u1'", shape="(3, 4)", data=12))
LABELS = ("labels.npy", npy("'<i8'", shape="(3,)", data=24))
STORED = npz([IMAGES, LABELS])
DEFLATED = npz([IMAGES, LABELS], zipfile.ZIP_DEFLATED)
DIRECTORY, LOCAL, END = b"PK\1\2", b"PK\3\4", b"PK\5\6"

NPZ = {
    "ok-stored": STORED,
    "ok-deflated": DEFLATED,
    "ok-zip64-members": npz([IMAGES, LABELS], zip64=True),
    "ok-zip64-end": npz64(STORED),
    "ok-comment": npz([IMAGES], comment=b"a PK\5\6 comment"),
    "bad-empty": b"",
    "bad-no-members": npz([]),
    "bad-only-magic": b"PK\3\4",
    "bad-cut": STORED[:-1],
    "bad-no-directory": STORED[:STORED.index(DIRECTORY)],
    "bad-bytes-after": STORED + b"x",
    "bad-bytes-before": b"x" + STORED,
    "bad-not-npy": npz([("notes.txt", b"words")]),
    "bad-no-name": npz([(".npy", IMAGES[1])]),
    "bad-twice": npz([IMAGES, ("imagez.npy", IMAGES[1])]).replace(b"imagez", b"images"),
    "bad-member-too-long": npz([("images.npy", IMAGES[1] + b"x")]),
    "bad-member-cut": npz([("images.npy", IMAGES[1][:-1])]),
    "bad-member-object": npz([("images.npy", npy("'|O'", shape="(3,)", data=24))]),
    "bad-member-scalar": npz([("count.npy", npy(shape="()", data=4))]),
    "bad-bzip2": npz([IMAGES], zipfile.ZIP_BZIP2),
    "bad-encrypted": patched(STORED, DIRECTORY, 8, b"\1\0"),
    "bad-deflated-checksum": patched(DEFLATED, DIRECTORY, 16, b"\1\2\3\4"),
    "bad-deflated-damage": patched(DEFLATED, b"images.npy", 10, b"\xff\xff\xff"),
    "bad-deflated-longer": patched(DEFLATED, DIRECTORY, 24, struct.pack("<I", 2000)),
    "bad-deflated-bomb": patched(DEFLATED, DIRECTORY, 24, b"\0\0\0\x7f"),
    "bad-deflated-cut": patched(DEFLATED, DIRECTORY, 20, struct.pack("<I", 20)),
    "bad-stored-sizes": patched(STORED, DIRECTORY, 24, b"\1"),
    "bad-past-directory": patched(patched(STORED, DIRECTORY, 20, b"\0\0\1\0"), DIRECTORY, 24, b"\0\0\1\0"),
    "bad-zip64-missing": patched(STORED, DIRECTORY, 20, b"\xff" * 8),
    "bad-zip64-no-locator": patched(STORED, END, 10, b"\xff" * 10),
    "bad-zip64-end": patched(npz64(STORED), b"PK\6\7", 8, b"\0" * 8),
    "bad-zip64-offset": patched(npz64(STORED), b"PK\6\6", 48, b"\xff" * 8),
    "bad-zip64-entries": patched(npz64(STORED), b"PK\6\6", 32, b"\xff" * 8),
    "bad-offset": patched(STORED, DIRECTORY, 42, b"\1"),
    "bad-other-name": patched(STORED, LOCAL, 30, b"x"),
    "bad-entries": patched(STORED, END, 10, b"\1\0"),
    "bad-more-entries": patched(STORED, END, 10, b"\3\0"),
    "bad-split": patched(STORED, END, 4, b"\1"),
    "bad-local-extra": patched(STORED, LOCAL, 28, b"\xff\xff"),
}
# One member within the data of another.
INNER = npz([LABELS])
OUTER = npz([("outer.npy", npy("'|u1'", shape=f"({INNER.index(DIRECTORY)},)", data=0) + INNER[:INNER.index(DIRECTORY)])])
BEGIN = OUTER.index(LOCAL, 1)
ENTRIES = OUTER[OUTER.index(DIRECTORY):OUTER.index(END)] + patched(
    INNER[INNER.index(DIRECTORY):INNER.index(END)], DIRECTORY, 42, struct.pack("<I", BEGIN))
NPZ["bad-overlap"] = OUTER[:OUTER.index(DIRECTORY)] + ENTRIES + struct.pack(
    "<4sHHHHIIH", END, 0, 0, 2, 2, len(ENTRIES), OUTER.index(DIRECTORY), 0)
# Deflated data that ends before its member does.
SHORT = zlib.compressobj(wbits=-15)
SHORT = SHORT.compress(IMAGES[1]) + SHORT.flush() + b"beyond"
TRAILING = npz([("images.npy", SHORT)])
for field, bytes_ in ((10, b"\x08\0"), (16, struct.pack("<I", zlib.crc32(IMAGES[1]))), (24, struct.pack("<I", len(IMAGES[1])))):
    TRAILING = patched(TRAILING, DIRECTORY, field, bytes_)
NPZ["bad-deflated-trailing"] = patched(TRAILING, LOCAL, 8, b"\x08\0")

BOTH = {"images": ("U8", [3, 2], [0, 6]), "labels": ("I64", [3], [6, 30])}
SAFETENSORS = {
    "ok-two": safetensors(BOTH),
    "ok-metadata": safetensors(text='{"__metadata__": {"made": "by hand"}, "x": {"dtype": "F32", "shape": [2, 3], '
                                    '"data_offsets": [0, 24]}}', data=24),
    "ok-padded": safetensors(text='{"x":{"dtype":"BF16","shape":[5,1],"data_offsets":[0,10]}}     ', data=10),
    "ok-bool": safetensors({"x": ("BOOL", [7], [0, 7])}, data=7),
    "ok-any-order": safetensors({"a": ("F64", [1], [2, 10]), "b": ("U16", [1], [0, 2])}, data=10),
    "ok-other-keys": safetensors(text='{"x": {"dtype": "U8", "made": {"by": ["hand", 1.5e3, null, {}]}, "shape": [3], '
                                      '"data_offsets": [0, 3], "made": true}}', data=3),
    "ok-no-metadata": safetensors(text='{"x": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}, "__metadata__": null}', data=3),
    "bad-empty": b"",
    "bad-git-lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 30\n",
    "bad-seven-bytes": b"\2\0\0\0\0\0\0",
    "bad-no-header": safetensors(text="", data=0),
    "bad-length-past-end": safetensors(BOTH, length=10000),
    "bad-length-huge": safetensors(BOTH, length=2**64 - 1),
    "bad-length-cuts": safetensors(BOTH, length=20),
    "bad-not-json": safetensors(text="{'images': 7}"),
    "bad-not-utf-8": safetensors(text=b'{"\xff\xfe": 7}'),
    "bad-list": safetensors(text="[]", data=0),
    "bad-no-tensors": safetensors(text="{}", data=0),
    "bad-byte-order-mark": safetensors(text='\ufeff{"x": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}}', data=3),
    "bad-trailing-zeros": safetensors(text='{"x": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}}\0\0', data=3),
    "bad-trailing-text": safetensors(text='{"x": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}} 7', data=3),
    "bad-entry-list": safetensors(text='{"x": ["U8", [3], [0, 3]]}', data=3),
    "bad-list-in-shape": safetensors({"x": ("U8", [[3]], [0, 3])}, data=3),
    "bad-metadata-list": safetensors(text='{"x": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}, "__metadata__": []}', data=3),
    "bad-metadata-number": safetensors(text='{"x": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}, "__metadata__": {"a": 1}}', data=3),
    "bad-metadata-twice": safetensors(text='{"__metadata__": {}, "x": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}, '
                                           '"__metadata__": {}}', data=3),
    "bad-text-twice": safetensors(text='{"__metadata__": {"a": "1", "a": "2"}, "x": {"dtype": "U8", "shape": [3], '
                                       '"data_offsets": [0, 3]}}', data=3),
    "bad-twice": safetensors(text='{"x": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}, '
                                  '"x": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}}', data=3),
    "bad-key-twice": safetensors(text='{"x": {"dtype": "U8", "dtype": "I8", "shape": [3], "data_offsets": [0, 3]}}', data=3),
    "bad-no-dtype": safetensors(text='{"x": {"shape": [3], "data_offsets": [0, 3], "more": 1}}', data=3),
    "bad-float8": safetensors({"x": ("F8_E4M3", [3], [0, 3])}, data=3),
    "bad-float4": safetensors({"x": ("F4", [6], [0, 3])}, data=3),
    "bad-complex": safetensors({"x": ("C64", [3], [0, 24])}, data=24),
    "bad-scalar": safetensors({"x": ("F32", [], [0, 4])}, data=4),
    "bad-zero-samples": safetensors({"x": ("F32", [0, 3], [0, 0])}, data=0),
    "bad-zero-bytes": safetensors({"x": ("F32", [3, 0], [0, 0])}, data=0),
    "bad-negative": safetensors({"x": ("U8", [-3], [0, 3])}, data=3),
    "bad-fraction": safetensors({"x": ("U8", [3.0], [0, 3])}, data=3),
    "bad-overflow": safetensors({"x": ("U8", [2**32, 2**32], [0, 0])}, data=0),
    "bad-number-overflow": safetensors({"x": ("U8", [2**70], [0, 3])}, data=3),
    "bad-number-past-double": safetensors(text='{"x": {"dtype": "U8", "shape": [1e999], "data_offsets": [0, 3]}}', data=3),
    "bad-three-offsets": safetensors({"x": ("U8", [3], [0, 3, 3])}, data=3),
    "bad-offsets-backwards": safetensors({"x": ("U8", [3], [3, 0])}, data=3),
    "bad-offsets-size": safetensors({"x": ("U8", [3], [0, 4])}, data=4),
    "bad-past-end": safetensors(BOTH, data=29),
    "bad-offsets-huge": safetensors({"x": ("U8", [3], [2**64 - 4, 2**64 - 1])}, data=3),
    "bad-too-long": safetensors(BOTH, data=31),
    "bad-gap": safetensors({"x": ("U8", [3], [0, 3]), "y": ("U8", [3], [4, 7])}, data=7),
    "bad-overlap": safetensors({"x": ("U8", [3], [0, 3]), "y": ("U8", [3], [2, 5])}, data=5),
    "bad-metadata-alone": safetensors(text='{"__metadata__": {}}', data=0),
}



def event(category, name, ts=10, dur=5, **args):
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 2, "ts": ts, "dur": dur, "args": args}


def trace(*events, **more):
    return json.dumps({"schemaVersion": 1, "traceEvents": list(events), **more}).encode()


def damaged(old, new):
    """A right trace with one text replaced."""
    content = trace(KERNEL, COPY)
    assert old in content
    return content.replace(old, new, 1)


KERNEL = event("kernel", "gemm", device=0, stream=7, correlation=3)
COPY = event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 20.125, device=0, stream=7, correlation=4, bytes=4096)
TYPES = {"Input type": ["float", "unsigned char", "Scalar"], "Input Dims": [[2, 3], [2, 3], []]}

# Traces of PyTorch's profiler.
TRACE = {
    "ok-kernel": trace(KERNEL),
    "ok-copy": trace(COPY, deviceProperties=[{"id": 0, "name": "GPU", "numSms": 80}]),
    "ok-host": trace(
        KERNEL,
        COPY,
        event("cuda_runtime", "cudaMemcpyAsync", 18, 1, correlation=4),
        event("cuda_sync", "Context Sync", stream=-1, correlation=9, device=-1),
        event("cpu_op", "aten::copy_", 17, 3, **TYPES),
        event("python_function", "train.py(12): main", 1, 50),
        event("user_annotation", "ProfilerStep#3", 1, 50),
        event("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 2, 3),
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "python"}},
    ),
    "ok-escapes": damaged(b"gemm", b"g\\u0065\\\\\\\"m\\n"),
    "ok-not-finite": damaged(b'"stream": 7', b'"stream": 7, "memory bandwidth (GB/s)": inf, "x": -nan'),
    "ok-rocm": trace(
        event("cuda_runtime", "hipMemcpyWithStream", 18, 9, correlation="4", bytes="616", stream="0x0"),
        event("gpu_memcpy", "CopyHostToDevice", 20, 5, device="0", stream="0x7f0000000007", correlation="4"),
    ),
    "ok-torch-1.8": trace(
        event("Operator", "ProfilerStep#3"),
        event("Runtime", "cudaLaunchKernel", correlation=3),
        event("Kernel", "gemm", device=0, stream=7, correlation=3),
    ),
    "ok-xpu": trace(
        event("xpu_runtime", "urEnqueueUSMMemcpy", correlation=4),
        event("gpu_memcpy", "Memcpy M2D (MEMORY -> DEVICE)", device=0, bytes=64, correlation=4, **{"sycl queue": 5}),
    ),
    "ok-jax": trace(
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:GPU:0"}},
        {"ph": "M", "pid": 1, "tid": 2, "name": "thread_name", "args": {"name": "Stream #13(MemcpyH2D)"}},
        {
            **{"ph": "X", "pid": 1, "tid": 2, "name": "MemcpyH2D", "ts": 10, "dur": 5},
            "args": {"memcpy_details": "kind_src:pinned kind_dst:device size:4096 dest:0", "correlation_id": "7"},
        },
    ),
    "ok-array": json.dumps([KERNEL, COPY]).encode(),
    "ok-rank": trace(KERNEL, distributedInfo={"backend": "nccl", "rank": 3, "pg_config": [{}]}),
    "bad-counters": trace(event("cuda_profiler_range", "gemm")),
    "ok-old-times": trace(event("kernel", "gemm", 1682725898083829, 2, device=0, stream=7)),
    "bad-empty": b"",
    "bad-array": b"[]",
    "bad-cut": trace(KERNEL, COPY)[:-20],
    "bad-cut-string": trace(KERNEL)[:50],
    "bad-more": trace(KERNEL) + b"{}",
    "bad-no-events": b'{"schemaVersion": 1}',
    "bad-zero-events": trace(),
    "bad-no-gpu": trace(event("cpu_op", "aten::add")),
    "bad-events-object": b'{"traceEvents": {}}',
    "bad-event-number": b'{"traceEvents": [1]}',
    "bad-no-comma": damaged(b"}, {", b"} {"),
    "bad-no-colon": damaged(b'"ph":', b'"ph"'),
    "bad-brackets": damaged(b'"args": {"device"', b'"other": [}, "args": {"device"'),
    "bad-escape": damaged(b"gemm", b"\\x"),
    "bad-hex": damaged(b"gemm", b"\\u00g0"),
    "bad-name": damaged(b'"gemm"', b"7"),
    "bad-time-text": damaged(b'"ts": 10', b'"ts": "10"'),
    "bad-time-large": damaged(b'"ts": 10', b'"ts": 1e30'),
    "bad-time-nan": damaged(b'"ts": 10', b'"ts": nan'),
    "bad-time-missing": damaged(b'"ts": 10', b'"tz": 10'),
    "bad-duration": damaged(b'"dur": 5', b'"dur": -5'),
    "bad-device": damaged(b'"device": 0', b'"device": 70000'),
    "bad-no-device": damaged(b'"device": 0', b'"dev": 0'),
    "bad-stream": damaged(b'"stream": 7', b'"stream": 4294967296'),
    "bad-bytes": damaged(b'"bytes": 4096', b'"bytes": 4096.5'),
    "bad-shape": trace(KERNEL, event("cpu_op", "aten::copy_", **{"Input Dims": [[2**40, 2**40]]})),
    "bad-deep": damaged(b'"stream": 7', b'"stream": 7, "x": ' + b"[" * 300 + b"]" * 300),
}



def entry(kind, payload):
    return struct.pack("<II", len(payload), kind) + payload + bytes(-len(payload) % 4)


def frame(line, file, function):
    return entry(1, struct.pack("<iI", line, len(file)) + file + function)


def code(address, file):
    return entry(5, struct.pack("<Q", address) + file)


def recording(records=(), text=b"", version=2, capacity=100, written=None, state=1, text_bytes=None, ring=None,
              totals=b""):
    """A recording of the doctor's. Each record has a beginning, an end, a type and its other members by name. Recorders
    that kept totals had them between the text and the ring."""
    written = len(records) if written is None else written
    text_bytes = len(text) if text_bytes is None else text_bytes
    totals_at, first = (4096 + len(text), 900) if totals else (0, 0)
    text += totals
    ring = 4096 + len(text) if ring is None else ring
    head = b"penstock" + struct.pack(
        "<IIqQQQQQQIIqQq", version, 48, 77, ring, capacity, written, text_bytes, 0, 0, 28, state, 1700000000, totals_at, first
    )
    packed_records = b"".join(
        struct.pack(
            "<qqQIIIHBBQ",
            begin,
            end,
            more.get("value", 0),
            more.get("correlation", 0),
            more.get("stream", 0),
            more.get("sequence", index + 1),
            more.get("extra", 0),
            more.get("detail", 0),
            kind,
            more.get("last", 0),
        )
        for index, (begin, end, kind, more) in enumerate(records)
    )
    return (head.ljust(4096, b"\0") + text + packed_records)


def recorded_step(begin):
    """A copy and its call, a kernel and its launch, a synchronization, and a look at a wait."""
    return [
        (begin, begin + 200, 3, {"detail": 1, "correlation": begin, "stream": 5, "value": 1, "last": 77}),
        (begin + 50, begin + 200, 1, {"detail": 1, "extra": 0x301, "value": 1 << 20, "correlation": begin}),
        (begin + 210, begin + 215, 3, {"detail": 0, "stream": 5}),
        (begin + 220, begin + 900, 2, {"extra": 9}),
        (begin + 230, begin + 910, 3, {"detail": 2, "stream": 5, "value": 1}),
        (begin + 920, begin + 980, 4, {"stream": 5, "value": 1}),
    ]


STEPS = [record for i in range(8) for record in recorded_step(1000 * i + 1000)]
PLACES = (
    frame(30, b"/usr/lib/python3/dist-packages/torch/_tensor.py", b"to")
    + frame(12, b"train.py", b"main")
    + entry(2, struct.pack("<II", 0, 1))
    + entry(3, b"A note.")
    + entry(4, struct.pack("<I", 0) + b"GPU")
)

CODE = (
    code(0x2000, b"/usr/lib/libcuda.so.1")
    + code(0x1200, b"/home/program")
    + code(0x1300, b"/home/program")
    + entry(2, struct.pack("<III", 0, 1, 2))
)

LOOKS = [
    record
    for begin in range(1000, 9000, 1000)
    for record in [
        *recorded_step(begin),
        (begin + 981, begin + 984, 4, {"stream": 5, "value": 1, "detail": 1}),
        (begin + 985, begin + 990, 4, {"stream": 5, "value": 1, "detail": 4}),
        (begin + 991, begin + 993, 6, {"stream": 5, "value": 1}),
    ]
]
WATCHED = entry(10, struct.pack("<I", 5))

RANGES = [
    record
    for i, begin in enumerate(range(1000, 9000, 1000))
    for record in [
        (begin - 10, begin - 10, 5, {"stream": 5, "correlation": i, "last": 99}),
        *recorded_step(begin),
        (begin + 985, begin + 985, 5, {"stream": 5, "correlation": i, "detail": 1}),
    ]
]

STREAMS = (
    entry(8, struct.pack("<II", 1, 0))
    + entry(9, struct.pack("<III", 1, 0, 3))
    + entry(9, struct.pack("<III", 1, 13, 1))
    + entry(9, struct.pack("<III", 1, 13, 2))
)

# Recordings of the doctor's own. Those that are cut short or damaged behind the header are read as far as they go.
RECORDING = {
    "ok-steps": recording(STEPS, PLACES),
    "ok-code": recording(STEPS, CODE),
    "ok-code-cut": recording(STEPS, entry(5, b"1234567") + entry(5, bytes(8)) + entry(2, struct.pack("<II", 0, 1))),
    "ok-nodes": recording(STEPS, PLACES + entry(6, struct.pack("<II", 0, 1)) + entry(6, b"123") + entry(7, struct.pack("<I", 0))),
    "ok-streams": recording(STEPS, PLACES + STREAMS),
    "ok-streams-cut": recording(STEPS, entry(8, b"123") + entry(9, struct.pack("<II", 1, 0))),
    "ok-looks": recording(LOOKS, PLACES + WATCHED),
    "ok-looks-cut": recording(LOOKS, PLACES + entry(10, b"123")),
    "ok-ranges": recording(RANGES, PLACES),
    "ok-empty": recording(),
    "ok-cut": recording(STEPS, PLACES)[:-100],
    "ok-cut-text": recording(STEPS, PLACES)[:4140],
    "ok-half-a-record": recording([*STEPS, (1, 2, 2, {"sequence": 0})], PLACES),
    "ok-ring": recording(STEPS, PLACES, capacity=len(STEPS), written=10 * len(STEPS)),
    "ok-no-places": recording(STEPS),
    "ok-backwards": recording([(20, 10, 2, {})]),
    "ok-far": recording([(0, 1 << 62, 2, {}), (1 << 61, 1 << 62, 2, {})]),
    "ok-other-type": recording([(0, 1, 200, {})]),
    "ok-text-lies": recording(STEPS, struct.pack("<II", 2**32 - 1, 1), text_bytes=1 << 40),
    "ok-totals": recording(STEPS, PLACES, totals=b"\x01" * 320),
    "bad-empty": b"",
    "bad-magic": b"pennstock".ljust(5000, b"\0"),
    "bad-header-cut": recording()[:60],
    "bad-version": recording(version=1),
    "bad-capacity": recording(capacity=1 << 40),
    "bad-ring": recording(ring=8),
}

def png(bits=8, color_type=2, interlaced=0, data=b"", size=(3, 2)):
    """A picture whose rows are `data`."""
    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", *size, bits, color_type, 0, 0, interlaced)
    palette = chunk(b"PLTE", bytes(range(48))) if color_type == 3 else b""
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + palette + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


JPEG = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDACgcHiMeGSgjISMtKygwPGRBPDc3PHtYXUlkkYCZlo+AjIqgtObDoKrarYqMyP/L2u71////m8H////6"
    "/+b9//j/2wBDASstLTw1PHZBQXb4pYyl+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj/wAARCAAQABAD"
    "ASIAAhEBAxEB/8QAFQABAQAAAAAAAAAAAAAAAAAABAL/xAAbEAACAgMBAAAAAAAAAAAAAAABAgADBBESIf/EABUBAQEAAAAAAAAAAAAAAAAAAAID"
    "/8QAGREAAgMBAAAAAAAAAAAAAAAAAQIAAxES/9oADAMBAAIRAxEAPwBgyFMNdSbW2JFA6bUQz8eCTZDW3CRvUC2Gf//Z"
)
WEBP = base64.b64decode(
    "UklGRkYAAABXRUJQVlA4IDoAAACwAQCdASoQABAAB0CWJbACdAEJyyFAAP7DWHbThqUZou77Z3+h/+5CUFjjSJoVFxPgtqAlnj+oOEQA"
)

PICTURE = {
    "ok-jpeg": JPEG,
    "ok-webp": WEBP,
    "ok-png": png(data=(b"\0" + bytes(9)) * 2),
    "ok-png-palette": png(4, 3, data=(b"\0" + bytes(2)) * 2),
    "ok-png-interlaced": png(16, 0, 1, data=b"\0\0\0" * 3 + b"\0" + bytes(6) + b"\0" + bytes(6)),
    "bad-jpeg-cut": JPEG[:-2],
    "bad-png-cut": png(data=b"\0")[:-4],
    "bad-png-bomb": png(size=(65535, 65535)),
    "bad-webp-cut": WEBP[:-2],
    "bad-text": b"a text named .jpg",
}

if __name__ == "__main__":
    root = pathlib.Path(sys.argv[1])
    folders = {"npy": NPY, "npz": NPZ, "safetensors": SAFETENSORS, "trace": TRACE, "picture": PICTURE}
    for folder, files in {**folders, "recording": RECORDING}.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (root / folder / name).write_bytes(content)
