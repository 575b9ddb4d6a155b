"""Whole models: state dicts to the device and back, weights out of a .safetensors file, and checkpoints into one."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import mmap
import pathlib
import shutil
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .data import random_bytes
from .peers import roomy_folder
from .setting import OURS, Contender, Result, Setting, WrongBytes, attempt, median_call, opened
from .transfers import Tensors, move_all, ours_to_device, per_tensor

# Ceilings.
FLAT = "one flat tensor of as many bytes, `to_device`"
PINNED = "`.copy_(non_blocking=True)` of each, into pinned memory"


def _safetensors() -> str:
    """The installed release: they differ in how they load."""
    installed = importlib.util.find_spec("safetensors") is not None
    return f"safetensors {importlib.metadata.version('safetensors')}" if installed else "safetensors"


LOAD_FILE = f"{_safetensors()}, load_file"


def compare(setting: Setting) -> list[Result]:
    """A model's state dict, with other mixtures of sizes, and its weights in a file."""
    results = []
    total = (64 << 20) if setting.quick else (3 << 30) if setting.on_gpu else (256 << 20)
    for count in (48, 5000):
        job = Tensors(f"state dict, {count} tensors, {total / 2**20:.0f} MiB", _state_dict(count, total))
        results += move_all(job, setting, _to_device_contenders())
        results += _bring_all(job, setting)
        if count == 48:
            results += _save_all(job, setting)
            results += _load_all(job, setting)
    return results


def _state_dict(count: int, total: int) -> dict[str, torch.Tensor]:
    """A few large tensors and many small ones, as models have them: every sixth is a norm of 8 KiB."""
    norms = count // 6
    large = (total - norms * 8192) // (count - norms) // 4096 * 4096
    host = {}
    for k in range(count):
        size = 8192 if k % 6 == 5 else large
        host[f"layers.{k // 6}.{k % 6}"] = random_bytes(size // 4096, 4096)
    return host


class _Views:
    """The tensors of a dict in one block. They are made when they are looked at: a flat copy does without."""

    def __init__(self, flat: torch.Tensor, host: dict[str, torch.Tensor]):
        self._flat, self._host = flat, host

    def items(self) -> Iterator[tuple[str, torch.Tensor]]:
        parts = self._flat.split([tensor.nbytes for tensor in self._host.values()])
        for (name, tensor), part in zip(self._host.items(), parts, strict=True):
            yield name, part.view(tensor.shape)


def _flat_to_device(job: Tensors, setting: Setting, _: Any) -> Callable[[], _Views]:
    import penstock

    flat = torch.cat([tensor.view(-1) for tensor in job.host.values()])
    return lambda: _Views(penstock.to_device(flat, setting.device), job.host)


def _to_device_contenders() -> list[Contender]:
    return [
        Contender("`.to()` of each", per_tensor(False)),
        Contender(FLAT, _flat_to_device, ("penstock",), ceiling=True),
        Contender("penstock.to_device", ours_to_device, **OURS),
    ]


# Back to the host.


def _bring_all(job: Tensors, setting: Setting) -> list[Result]:
    """The state dict from the device into memory of the host."""

    def cpu_each(there: dict, setting: Setting, _: Any) -> Callable[[], dict]:
        return lambda: {name: tensor.to("cpu", copy=True) for name, tensor in there.items()}

    def pinned_each(there: dict, setting: Setting, _: Any) -> Callable[[], dict]:
        host = {name: torch.empty_like(tensor, device="cpu", pin_memory=True) for name, tensor in there.items()}

        def call() -> dict:
            for name, tensor in there.items():
                host[name].copy_(tensor, non_blocking=True)
            return host

        return call

    def ours(there: dict, setting: Setting, _: Any) -> Callable[[], dict]:
        import penstock

        return lambda: penstock.to_host(there)

    def ours_out(there: dict, setting: Setting, _: Any) -> Callable[[], dict]:
        import penstock

        out = {name: torch.zeros_like(tensor, device="cpu") for name, tensor in there.items()}
        return lambda: penstock.to_host(there, out=out)

    contenders = [
        Contender("`.cpu()` of each", cpu_each),
        Contender(PINNED, pinned_each, gpu_only=True, ceiling=True),
        Contender("penstock.to_host", ours, gpu_only=True, **OURS),
        Contender("penstock.to_host(out=)", ours_out, **OURS),
    ]
    there = {name: tensor.to(setting.target, copy=True) for name, tensor in job.host.items()}

    def measure(contender: Contender, result: Result) -> None:
        with opened(contender, there, setting, None) as call:
            for tensor in call().values():  # what the copies overwrite
                tensor.fill_(0xA5)
            returned, done = median_call(call, setting)
            back = call()
            setting.synchronize()
            if any(not torch.equal(back[name], tensor) for name, tensor in job.host.items()):
                raise WrongBytes("other bytes came back than were sent")
            result.figures = {"thread_us": 1e6 * returned, "done_us": 1e6 * done, "gbps": job.bytes / done / 1e9}
            result.verified = True

    return [attempt(f"{job.name}, back", contender, setting, measure) for contender in contenders]


# Checkpoints.


def _save_all(job: Tensors, setting: Setting) -> list[Result]:
    """How long a checkpoint holds the thread that trains, from the second one on."""

    def torch_save(there: dict, file: pathlib.Path, _: Any) -> Callable[[], Any]:
        return lambda: torch.save(there, file)

    def safetensors_save(there: dict, file: pathlib.Path, _: Any) -> Callable[[], Any]:
        from safetensors.torch import save_file

        return lambda: save_file(there, file)

    def ours(wait: bool) -> Callable:
        def make(there: dict, file: pathlib.Path, _: Any) -> Callable[[], Any]:
            import penstock

            return lambda: penstock.save_safetensors(there, file, wait=wait)

        return make

    contenders = [
        Contender("torch.save", torch_save),
        Contender(f"{_safetensors()}, save_file", safetensors_save, ("safetensors",)),
        Contender("penstock.save_safetensors", ours(True), **OURS),
        Contender("penstock.save_safetensors(wait=False)", ours(False), **OURS),
    ]
    there = {name: tensor.to(setting.target, copy=True) for name, tensor in job.host.items()}
    folder = pathlib.Path(tempfile.mkdtemp(dir=roomy_folder(3 * job.bytes)))

    def measure(contender: Contender, result: Result) -> None:
        file = folder / "checkpoint"
        call = contender.make(there, file, None)
        held = []
        for _ in range(4):
            setting.synchronize()
            begin = time.perf_counter()
            pending = call()
            held.append(time.perf_counter() - begin)
            if pending is not None:
                pending.wait()
        if contender.name != "torch.save":
            read = map_safetensors(file)
            if any(not torch.equal(read[name], tensor) for name, tensor in job.host.items()):
                raise WrongBytes("the file holds other bytes")
        seconds = statistics.median(held[1:])
        result.figures = {"thread_us": 1e6 * seconds, "gbps": job.bytes / seconds / 1e9}
        result.verified = True

    try:
        return [attempt(f"{job.name}, to a file", contender, setting, measure) for contender in contenders]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# Weights out of a file.


def write_safetensors(file: pathlib.Path, tensors: dict[str, torch.Tensor]) -> None:
    """The length of a JSON header, the header, and the tensors' bytes."""
    header, end = {}, 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": "U8", "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            out.write(memoryview(tensor.view(-1).numpy()))


def map_safetensors(file: pathlib.Path) -> dict[str, torch.Tensor]:
    """The tensors of a file, as views of its mapping."""
    with file.open("rb") as source:
        mapping = memoryview(mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_COPY))
    (length,) = struct.unpack("<Q", mapping[:8])
    header = json.loads(bytes(mapping[8 : 8 + length]))
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        flat = torch.frombuffer(mapping[begin:end], dtype=torch.uint8)
        tensors[name] = flat.view(entry["shape"])
    return tensors


def _load_all(job: Tensors, setting: Setting) -> list[Result]:
    """The same tensors out of a .safetensors file in memory or in the page cache."""
    folder = pathlib.Path(tempfile.mkdtemp(dir=roomy_folder(2 * job.bytes)))
    try:
        stored = Tensors(f"{job.name}, in a file", job.host, folder / "weights.safetensors")
        write_safetensors(stored.file, stored.host)
        return move_all(stored, setting, _load_contenders())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _has_prefetch() -> bool:
    """True from safetensors 0.9 on."""
    try:
        from safetensors import safe_open
    except ImportError:
        return False
    return hasattr(safe_open, "prefetch")


def _load_contenders() -> list[Contender]:
    def safetensors_load(job: Tensors, setting: Setting, _: Any) -> Callable[[], dict]:
        from safetensors.torch import load_file

        if setting.on_gpu:
            return lambda: load_file(str(job.file), device=str(setting.target))
        return lambda: {name: tensor.clone() for name, tensor in load_file(str(job.file)).items()}  # it only maps

    def safetensors_pread(job: Tensors, setting: Setting, _: Any) -> Callable[[], dict]:
        from safetensors import safe_open

        def call() -> dict:
            with safe_open(str(job.file), "pt", str(setting.target), backend="pread") as opened_file:
                return {name: opened_file.get_tensor(name) for name in job.host}

        return call

    def safetensors_prefetch(job: Tensors, setting: Setting, _: Any) -> Callable[[], dict]:
        from safetensors import safe_open

        def call() -> dict:
            with (
                safe_open(str(job.file), "pt") as opened_file,
                opened_file.prefetch(device=str(setting.target)) as loader,
            ):
                return dict(loader)

        return call

    def torch_load(job: Tensors, setting: Setting, _: Any) -> Callable[[], dict]:
        file = job.file.with_suffix(".pt")
        torch.save(job.host, file)
        return lambda: torch.load(file, map_location=setting.target, mmap=True, weights_only=True)

    def fastsafetensors(job: Tensors, setting: Setting, _: Any) -> Callable[[], dict]:
        from fastsafetensors import fastsafe_open

        def call() -> dict:
            with fastsafe_open(filenames=[str(job.file)], nogds=True, device=str(setting.target)) as opened_file:
                return {name: opened_file.get_tensor(name).clone() for name in job.host}

        return call

    def instanttensor(job: Tensors, setting: Setting, _: Any) -> Callable[[], dict]:
        from instanttensor import safe_open

        def call() -> dict:
            with safe_open([str(job.file)], framework="pt", device=setting.target.index) as opened_file:
                return dict(opened_file.tensors())

        return call

    def runai(job: Tensors, setting: Setting, _: Any) -> Callable[[], dict]:
        from runai_model_streamer import SafetensorsStreamer

        def call() -> dict:
            with SafetensorsStreamer() as streamer:
                streamer.stream_file(str(job.file))
                return {name: tensor.to(setting.target, copy=True) for name, tensor in streamer.get_tensors()}

        return call

    def ours(job: Tensors, setting: Setting, _: Any) -> Callable[[], dict]:
        import penstock

        return lambda: penstock.load_safetensors(job.file, setting.device)

    newer = []
    if _has_prefetch():
        newer = [
            Contender(f"{_safetensors()}, safe_open(backend='pread')", safetensors_pread),
            Contender(f"{_safetensors()}, safe_open.prefetch", safetensors_prefetch, gpu_only=True),
        ]
    return [
        Contender(FLAT, _flat_to_device, ("penstock",), ceiling=True),
        Contender("torch.load(mmap=True)", torch_load),
        Contender(LOAD_FILE, safetensors_load, ("safetensors",)),
        *newer,
        Contender("fastsafetensors", fastsafetensors, ("fastsafetensors",), gpu_only=True),
        Contender("InstantTensor", instanttensor, ("instanttensor",), gpu_only=True),
        Contender("Run:ai Model Streamer", runai, ("runai_model_streamer",), gpu_only=True),
        Contender("penstock.load_safetensors", ours, **OURS),
    ]
