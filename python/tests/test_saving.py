"""save_safetensors: the bytes in the file, when tensors may change, what stays if it fails, and who waits for whom."""

import gc
import logging
import os
import pathlib
import resource
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

import penstock
import safetensors_files as files
from penstock import _core
from penstock._move import saving as _saving
from support import place, run_in_threads, run_program
from test_weights import DTYPES, bytes_of


def expected(tensors):
    """What `content` reads for tensors of PyTorch."""
    names = {dtype: name for name, dtype in DTYPES.items()}
    return {
        name: (names[tensor.dtype], tuple(tensor.shape), bytes_of(tensor.detach())) for name, tensor in tensors.items()
    }


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


@pytest.fixture(autouse=True)
def nothing_is_left(request, tmp_path):
    yield
    if isinstance(request.node, pytest.Function) and _saving._last is not None:
        _saving._last._end()
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]


@pytest.mark.parametrize("wait", [True, False])
def test_every_type_and_shape_comes_back(device, random, path, wait):
    tensors = files.mixed(random, tuple(DTYPES))
    tensors["large"] = ("F32", (2_500_000,), random.bytes(10_000_000))
    loaded = penstock.load_safetensors(files.write(path, tensors), device)
    os.unlink(path)
    pending = penstock.save_safetensors(loaded, path, wait=wait)
    if wait:
        assert pending is None
    else:
        pending.wait()
        assert pending.done() and pending.path == str(path) and repr(pending).endswith("on the disk>")
    assert files.content(path) == (tensors, {"format": "pt"})
    again = penstock.load_safetensors(path, device)
    assert list(again) and all(torch.equal(again[n].view(-1).view(torch.uint8), loaded[n].view(-1).view(torch.uint8))
                               for n in tensors if loaded[n].numel())  # fmt: skip


def test_what_a_module_has(device, path):
    model = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.BatchNorm1d(3)).to(place(device))
    penstock.save_safetensors(model.state_dict(), path)
    assert files.content(path)[0] == expected(model.state_dict())
    named = dict(model.named_parameters())  # they require gradients
    penstock.save_safetensors(named, str(path), metadata=None)
    assert files.content(path) == (expected(named), None)


def test_elements_that_lie_apart_and_memory_that_is_shared(device, path):
    base = torch.randn(6, 8, device=place(device))
    tensors = {
        "a": base,
        "t": base.t(),
        "part": base[::2, 1:5],
        "negative": torch.view_as_complex(base[:, :2].clone()).conj().imag,
        "expanded": base[0, 0].expand(3),
        "scalar": base[1, 1],
        "none": base[:0],
    }
    penstock.save_safetensors(tensors, path)
    assert files.content(path)[0] == expected(tensors)


def test_arrays_of_others(device, path):
    arrays = {
        "big": np.arange(6, dtype=">i4").reshape(2, 3),
        "columns": np.asfortranarray(np.random.rand(3, 4)),
        "scalar": np.array(3.5, np.float32),
        "apart": np.arange(10, dtype=np.uint16)[::3],
        "flags": np.array([True, False]),
    }
    there = penstock.to_device({"on": np.arange(5, dtype=np.int64)}, device)
    penstock.save_safetensors({**arrays, **there}, path, metadata={"step": "3", "ä": "ü"})
    read, metadata = files.content(path)
    assert metadata == {"step": "3", "ä": "ü"}
    types = {"big": "I32", "columns": "F64", "scalar": "F32", "apart": "U16", "flags": "BOOL"}
    for name, array in arrays.items():
        native = array.astype(array.dtype.newbyteorder("="))
        assert read[name] == (types[name], array.shape, native.tobytes()), name
    assert read["on"] == ("I64", (5,), np.arange(5, dtype=np.int64).tobytes())


def test_tensors_may_change_once_the_call_returns(device, path):
    tensors = {
        str(i): torch.full((n,), i, dtype=torch.int32, device=place(device)) for i, n in enumerate([1, 3_000_000, 7])
    }
    before = expected(tensors)
    pending = penstock.save_safetensors(tensors, path, wait=False)
    for tensor in tensors.values():
        tensor.fill_(-1)
    pending.wait()
    assert files.content(path)[0] == before


class Held:
    """Holds writes until it is released; `began` says that there is one."""

    def __init__(self, monkeypatch):
        self.began, self.go_on = threading.Event(), threading.Event()
        write = _core.WeightSave.write

        def held(save, path):
            self.began.set()
            self.go_on.wait(60)
            write(save, path)

        monkeypatch.setattr(_core.WeightSave, "write", held)


@pytest.fixture
def held(monkeypatch):
    hold = Held(monkeypatch)
    yield hold
    hold.go_on.set()
    if _saving._last is not None:
        _saving._last._end()


def test_a_second_save_waits_for_the_first(held, monkeypatch, tmp_path):
    first, states, copy = [], [], _core.copy_weights

    def copy_weights(*arguments):
        states.extend(pending.done() for pending in first)
        return copy(*arguments)

    monkeypatch.setattr(_core, "copy_weights", copy_weights)
    tensors = {"a": torch.zeros(1000)}
    first.append(penstock.save_safetensors(tensors, tmp_path / "first", wait=False))
    assert not first[0].done() and "being written" in repr(first[0])
    tensors["a"].fill_(1)
    second = threading.Thread(target=penstock.save_safetensors, args=(tensors, tmp_path / "second"))
    second.start()
    second.join(0.05)
    held.go_on.set()
    second.join()
    assert states == [True]
    for name, value in [("first", 0), ("second", 1)]:
        assert files.content(tmp_path / name)[0] == expected({"a": torch.full((1000,), float(value))})


def test_the_memory_is_kept_for_the_next_save(path):
    def save(count):
        penstock.save_safetensors({"a": torch.zeros(count, dtype=torch.uint8)}, path)
        return _saving._kept

    first = save(9 << 20)
    assert save(9 << 20) is first and save(6 << 20) is first
    assert save(30 << 20) is not first
    assert files.content(path)[0]["a"][2] == bytes(30 << 20)
    large = _saving._kept
    small = save(1000)
    assert small is not large
    assert files.content(path)[0]["a"][2] == bytes(1000)


def save_ones(count, path):
    """The memory that is kept after it."""
    penstock.save_safetensors({"a": torch.ones(count, dtype=torch.uint8)}, path)
    assert files.content(path)[0]["a"][2] == b"\1" * count
    return _saving._kept


def test_a_save_that_is_refused_leaves_the_memory_for_the_next(path):
    first = save_ones(9 << 20, path)
    with pytest.raises(penstock.InvalidArgument, match="'__metadata__'"):
        penstock.save_safetensors({"__metadata__": torch.zeros(1)}, path)
    assert save_ones(9 << 20, path) is first


def test_memory_that_was_freed_for_a_save_without_room_serves_no_other(path):
    first = save_ones(9 << 20, path)
    large = torch.zeros(256 << 20, dtype=torch.uint8)
    gc.collect()  # what other tests left, such as slots of workers, would free addresses later
    addresses = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (addresses + (64 << 20), before[1]))
    try:
        with pytest.raises(penstock.OutOfMemory, match="cannot give 258 MiB"):
            penstock.save_safetensors({"a": large}, path)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert save_ones(9 << 20, path) is not first


def test_threads_may_save_at_once(device, tmp_path):
    def work(k):
        tensors = {"a": torch.full((100_000,), k, device=place(device))}
        for step in range(5):
            penstock.save_safetensors(tensors, tmp_path / f"{k}", wait=step % 2 == 0)

    run_in_threads(work, range(4))
    for k in range(4):
        assert files.content(tmp_path / f"{k}")[0] == expected({"a": torch.full((100_000,), k)})


class Named(torch.Tensor):
    pass


@pytest.mark.parametrize(
    ("tensors", "error", "why"),
    [
        ([torch.zeros(1)], penstock.InvalidArgument, "dict from name to tensor.*not a list"),
        ({1: torch.zeros(1)}, penstock.InvalidArgument, "name is a text, not 1"),
        ({"a": {"b": torch.zeros(1)}}, penstock.InvalidArgument, "'a' is a dict, .* flat: .* 'a.weight'"),
        ({"a": [torch.zeros(1)]}, penstock.InvalidArgument, "'a' is a list"),
        ({"a": 3.5}, penstock.InvalidArgument, "'a' is a float, not an array"),
        ({"a": None}, penstock.InvalidArgument, "'a' is a NoneType"),
        ({"__metadata__": torch.zeros(1)}, penstock.InvalidArgument, "'__metadata__'"),
        ({"\ud800": torch.zeros(1)}, penstock.InvalidArgument, "UTF-8"),
        ({"a": torch.zeros(2, device="meta")}, penstock.InvalidArgument, "'a' is on the device 'meta'"),
        ({"a": torch.zeros(2, 2).to_sparse()}, penstock.Unsupported, r"'a' is sparse \(torch.sparse_coo\): .*to_dense"),
        (
            {"a": torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged)},
            penstock.Unsupported,
            "'a' is a nested tensor: .*offsets",
        ),
        ({"a": torch.zeros(2).as_subclass(Named)}, penstock.Unsupported, r"'a' is of a type of its own \(Named\)"),
        ({"a": torch.zeros(2, dtype=torch.complex128)}, penstock.Unsupported, "'a' is complex128, .* only complex64"),
        ({"a": np.zeros(2, complex)}, penstock.Unsupported, "'a': .* complex128"),
        (
            {"a": np.zeros(2, np.longdouble)},
            penstock.Unsupported,
            "'a': a .safetensors file has no (float128|longdouble)",
        ),
        ({"a": np.array(["text"])}, penstock.Unsupported, "'a': .* <U4"),
        ({"a": np.array([object()])}, penstock.Unsupported, "'a': .* object"),
        ({"a": np.ma.zeros(3)}, penstock.InvalidArgument, "'a' is a masked array"),
    ],
)
def test_what_cannot_be_saved_is_named_and_the_old_file_stays(path, tensors, error, why):
    path.write_text("old")
    with pytest.raises(error, match=why):
        penstock.save_safetensors(tensors, path)
    assert path.read_text() == "old"


def test_four_bits(path):
    four = torch.tensor([[0x12, 0x34], [0x56, 0x78]], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    penstock.save_safetensors({"four": four}, path, metadata=None)
    assert files.content(path)[0] == {"four": ("F4", (2, 4), b"\x12\x34\x56\x78")}
    load_file = pytest.importorskip("safetensors.torch").load_file
    assert load_file(path)["four"].view(torch.uint8).tolist() == four.view(torch.uint8).tolist()


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"])
def test_types_of_ml_dtypes_and_jax(path, name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.array([[0.5, -1, 3], [0, 2, 4]], np.float32).astype(getattr(ml_dtypes, name))
    arrays = {"numpy": array, "apart": array[:, ::2], "scalar": array[:1, 1].reshape(())}
    arrays["like_jax"] = LikeJax(array)
    penstock.save_safetensors(arrays, path)
    loaded = penstock.load_safetensors(path, "host")
    assert list(loaded) == list(arrays)
    for key, saved in arrays.items():
        assert loaded[key].dtype == getattr(torch, name)
        assert loaded[key].float().tolist() == np.asarray(saved).astype(np.float32).tolist()


class LikeJax:
    """An array whose DLPack NumPy cannot read, as JAX's are of such types."""

    def __init__(self, array):
        self._array = array

    def __array__(self, dtype=None, copy=None):
        return self._array

    def __dlpack__(self, **options):
        raise BufferError("NumPy would not know this type")

    def __dlpack_device__(self):
        return 1, 0


@pytest.mark.parametrize("metadata", [{"step": 3}, {3: "step"}, "text", [("a", "b")], {"a": "\ud800"}])
def test_metadata_is_text(path, metadata):
    with pytest.raises(penstock.InvalidArgument, match="metadata"):
        penstock.save_safetensors({}, path, metadata=metadata)


@pytest.mark.parametrize("file", [None, 3, "", "folder/"])
def test_a_path_is_wanted(file):
    with pytest.raises(penstock.InvalidArgument, match="the path of a file"):
        penstock.save_safetensors({}, file)


def test_no_tensor_is_a_file_too(path):
    penstock.save_safetensors({}, path)
    assert files.content(path) == ({}, {"format": "pt"})


def test_what_the_write_meets_is_raised_and_told(tmp_path, caplog):
    missing = tmp_path / "none" / "model"
    with pytest.raises(penstock.Error, match=r"none/model cannot be written: .*No such file") as caught:
        penstock.save_safetensors({"a": torch.zeros(3)}, missing)
    assert isinstance(caught.value, FileNotFoundError) and caught.value.filename == str(missing)
    with pytest.raises(IsADirectoryError, match="not a regular file"):
        penstock.save_safetensors({"a": torch.zeros(3)}, tmp_path)
    assert not caplog.records
    with caplog.at_level(logging.ERROR, "penstock"):
        pending = penstock.save_safetensors({"a": torch.zeros(3)}, missing, wait=False)
        for ask in (pending.wait, pending.wait, pending.done):
            with pytest.raises(penstock.Error, match="No such file"):
                ask()
    assert "none/model cannot be written" in caplog.text and "failed" in repr(pending)
    penstock.save_safetensors({"a": torch.zeros(3)}, tmp_path / "model")
    assert files.content(tmp_path / "model")[0] == expected({"a": torch.zeros(3)})


def small_disk(folder):
    """A file system of 1 MiB there. Only root may have one."""
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("mounting a file system is not allowed")
    return folder


@pytest.fixture
def full_disk(request, tmp_path):
    """A folder that takes files of 1 MiB at most, and what the system says of larger ones."""
    if request.param == "file system":
        folder = small_disk(tmp_path)
        request.addfinalizer(lambda: subprocess.run(["umount", "-l", folder], check=True))
        return folder, "No space left on device"
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)  # Python ignores SIGXFSZ
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limit[1]))
    request.addfinalizer(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
    return tmp_path, "File too large"


@pytest.mark.parametrize("full_disk", ["file system", "limit"], indirect=True)
@pytest.mark.parametrize("wait", [True, False])
def test_a_full_disk_leaves_the_old_file(full_disk, wait, caplog):
    folder, why = full_disk
    path = folder / "model"
    penstock.save_safetensors({"a": torch.zeros(3)}, path)
    large, message = {"a": torch.ones(1_000_000)}, f"{path} cannot be written: .*{why}"
    if wait:
        with pytest.raises(penstock.Error, match=message):
            penstock.save_safetensors(large, path)
    else:
        pending = penstock.save_safetensors(large, path, wait=False)
        for ask in (pending.wait, pending.done, pending.wait):
            with pytest.raises(penstock.Error, match=message):
                ask()
        assert "failed" in repr(pending) and why in caplog.text
    assert files.content(path)[0] == expected({"a": torch.zeros(3)})
    assert os.listdir(folder) == [path.name]
    penstock.save_safetensors({"a": torch.ones(3)}, path)  # there is room for this one
    assert files.content(path)[0] == expected({"a": torch.ones(3)})


def test_a_crash_amid_the_write_leaves_the_old_file(path):
    penstock.save_safetensors({"a": torch.zeros(3)}, path)
    program = (
        "import numpy, penstock, resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"  # ends the process where the file reaches the limit
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))\n"
        "penstock.save_safetensors({'a': numpy.ones(2_000_000, 'u1')}, sys.argv[1])\n"
    )
    assert run_program(program, path).returncode == -signal.SIGXFSZ
    assert files.content(path)[0] == expected({"a": torch.zeros(3)})
    assert os.listdir(path.parent) == [path.name]


def test_a_crash_does_not_stop_later_saves_of_the_same_process_number(path):
    """As in a container, where each run has the same number; without /proc, so that a file without a name gets none."""
    program = (
        "import numpy, os, penstock, resource, signal, subprocess, sys\n"
        "print(os.getpid(), flush=True)\n"
        "subprocess.run(['umount', '-l', '/proc'], check=True)\n"
        "if sys.argv[2] == 'dies':\n"
        "    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"
        "    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))\n"
        "penstock.save_safetensors({'a': numpy.ones(2_000_000, 'u1')}, sys.argv[1])\n"
    )
    container = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", '"$@"; exit $?', "sh"]
    if subprocess.run([*container, "umount", "-l", "/proc"], capture_output=True).returncode != 0:
        pytest.skip("containers are not allowed")
    runs = [
        subprocess.run([*container, sys.executable, "-c", program, path, how], capture_output=True, text=True)
        for how in ("dies", "dies", "lives")
    ]
    assert {run.stdout for run in runs} == {"2\n"}
    assert [run.returncode for run in runs] == [128 + signal.SIGXFSZ] * 2 + [0], runs[-1].stderr
    assert files.content(path)[0]["a"] == ("U8", (2_000_000,), b"\1" * 2_000_000)
    left = [name for name in os.listdir(path.parent) if name != path.name]
    assert len(left) == 2 and all(name.startswith("penstock-") and name.endswith(".tmp") for name in left)
    for name in left:
        os.unlink(path.parent / name)


def test_a_long_name_and_a_link_to_a_file_to_be(tmp_path):
    tensors = {"a": torch.zeros(3)}
    name = tmp_path / ("n" * 255)
    penstock.save_safetensors(tensors, name)
    assert files.content(name)[0] == expected(tensors)
    (tmp_path / "link").symlink_to("target")
    penstock.save_safetensors(tensors, tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and files.content(tmp_path / "target")[0] == expected(tensors)


def test_ctrl_c_leaves_the_old_file(ctrl_c, held, monkeypatch, path):
    path.write_text("old")
    cancel = _core.WeightSave.cancel

    def cancel_and_go_on(save):
        cancel(save)
        held.go_on.set()

    def interrupt():
        held.began.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(_core.WeightSave, "cancel", cancel_and_go_on)
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        penstock.save_safetensors({"a": torch.ones(100)}, path)
    thread.join()
    assert path.read_text() == "old" and os.listdir(path.parent) == [path.name]
    penstock.save_safetensors({"a": torch.ones(100)}, path)
    assert files.content(path)[0] == expected({"a": torch.ones(100)})


def test_ctrl_c_before_the_writer_begins_leaves_the_old_file(monkeypatch, path):
    path.write_text("old")
    begin = _saving.PendingSave._begin

    def interrupted(pending):
        raise KeyboardInterrupt

    for wait in (True, False):
        monkeypatch.setattr(_saving.PendingSave, "_begin", interrupted)
        with pytest.raises(KeyboardInterrupt):
            penstock.save_safetensors({"a": torch.ones(100)}, path, wait=wait)
        assert path.read_text() == "old"
        assert _saving._last._save is None and "failed" in repr(_saving._last)
        begin(_saving._last)  # as if the thread came late
    monkeypatch.setattr(_saving.PendingSave, "_begin", begin)
    penstock.save_safetensors({"a": torch.ones(100)}, path)
    assert files.content(path)[0] == expected({"a": torch.ones(100)})


def test_a_program_that_ends_waits_for_its_file(path):
    program = (
        "import numpy, penstock, sys\n"
        "penstock.save_safetensors({'a': numpy.ones(20_000_000, 'u1')}, sys.argv[1], wait=False)\n"
    )
    run_program(program, path).check_returncode()
    assert files.content(path)[0]["a"] == ("U8", (20_000_000,), b"\1" * 20_000_000)


def test_a_forked_process_does_not_wait_for_its_parents_file(held, path):
    pending = penstock.save_safetensors({"a": torch.zeros(3)}, path, wait=False)
    gc.collect()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for ask in (pending.wait, pending.done):
                with pytest.raises(penstock.Closed, match="another process"):
                    ask()
            status = 0 if "another process" in repr(pending) and _saving._last is None else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    held.go_on.set()
    pending.wait()
    assert files.content(path)[0] == expected({"a": torch.zeros(3)})


@pytest.mark.parametrize("wait", [True, False])
def test_without_a_thread_the_caller_writes_and_reads(path, monkeypatch, wait):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    pending = penstock.save_safetensors({"x": torch.arange(1000)}, path, wait=wait)
    assert wait or pending.done()
    assert torch.equal(torch.as_tensor(penstock.load_safetensors(path, "host")["x"]), torch.arange(1000))
