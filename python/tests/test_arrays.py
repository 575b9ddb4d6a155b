"""Arrays on a GPU without PyTorch: on a real GPU if there is one, otherwise over the tests' fake driver."""

import fake_driver
from support import HAS_GPU, run_program

PROGRAM = """
import sys
import numpy as np
import penstock

def raises(kind, function, **arguments):
    try:
        function(**arguments)
    except kind:
        return True
    return False

random = np.random.default_rng()
big = random.integers(0, 256, 5 << 20, dtype=np.uint8)
tree = {"a": np.arange(12.0).reshape(3, 4), "b": [big, np.ones(3, np.float16)], "t": np.ones((2, 3)).T, "e": np.ones(0)}
sent = penstock.to_device(tree, "cuda")
a = sent["a"]
assert type(a) is penstock.Array and a.shape == (3, 4) and a.dtype == "float64" and a.nbytes == 96
assert a.__dlpack_device__() == (2, 0) and "shape=(3, 4)" in repr(a)
assert '"dltensor"' in repr(a.__dlpack__()) and '"dltensor_versioned"' in repr(a.__dlpack__(max_version=(1, 1)))
for stream in (None, 1, -1):
    a.__dlpack__(stream=stream)
assert raises(ValueError, a.__dlpack__, stream=0)
assert raises(BufferError, a.__dlpack__, dl_device=(1, 0))
assert raises(BufferError, a.__dlpack__, copy=True)
described = a.__cuda_array_interface__
assert described["shape"] == (3, 4) and described["typestr"] == "<f8" and described["strides"] == (32, 8)
assert sent["t"].__cuda_array_interface__["strides"] == (8, 24)

back = penstock.to_host(sent)
for one, other in ((back["a"], tree["a"]), (back["b"][0], big), (back["b"][1], tree["b"][1]), (back["t"], tree["t"])):
    assert one.dtype == other.dtype and one.shape == other.shape and (one == other).all()
assert penstock.to_device(sent, "cuda")["a"] is a
moved = penstock.to_device(sent, "host")
assert type(moved["a"]) is np.ndarray and (moved["a"] == tree["a"]).all()

kept = list(penstock.feed([{"x": np.full(1000, i)} for i in range(30)], device="cuda"))
assert all((penstock.to_host(batch["x"]) == i).all() for i, batch in enumerate(kept))

samples = big.reshape(-1, 1024)
loader = penstock.Loader((samples, np.arange(len(samples))), batch_size=100, shuffle=True, device="cuda")
seen = []
for x, y in loader:
    xs, ys = penstock.to_host((x, y))
    assert (xs == samples[ys]).all()
    seen.append(ys)
assert (np.sort(np.concatenate(seen)) == np.arange(len(samples))).all()
assert raises(penstock.InvalidArgument, lambda: penstock.to_device(tree, "cuda:77"))
assert "torch" not in sys.modules
print("done")
"""


def test_arrays_without_pytorch():
    done = run_program(PROGRAM, **({} if HAS_GPU else {"LD_LIBRARY_PATH": fake_driver.library_path()}))
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
