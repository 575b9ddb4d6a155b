#!/usr/bin/env python3
"""Writes a trace as PyTorch's profiler exports it, of a training loop that is simulated: make_trace.py FILE [options]

The host and one GPU have a clock each. The loop takes a batch from a DataLoader, copies its tensors to the GPU,
launches kernels, and reads the loss, with the mistakes that the options ask for. FILE may end in .gz.
"""

import argparse
import gzip
import json

PID = 4000
STREAM = 7
LAUNCH_US = 5.0  # a kernel's launch on the host
REACH_US = 4.0  # from a launch to its kernel, on an idle GPU
WIRE_US_PER_MB = {"Pinned": 20.0, "Pageable": 100.0}


class Trace:
    """Events in the order of their beginnings on each clock, written at once."""

    def __init__(self, file, options):
        self.file = file
        self.options = options
        self.host = 1000.0  # now, in microseconds
        self.gpu = 1000.0  # when the GPU's stream is idle
        self.count = 0
        self.correlation = 0

    def write(self, **event):
        self.file.write(("," if self.count else "") + "\n" + json.dumps(event))
        self.count += 1

    def span(self, category, name, begin, end, args, tid=PID, pid=PID):
        times = {"ts": round(begin, 3), "dur": round(end - begin, 3)}
        self.write(ph="X", cat=category, name=name, pid=pid, tid=tid, **times, args=args)

    def call(self, name, took):
        """A call of the runtime; the host goes on when it is over."""
        self.correlation += 1
        self.span("cuda_runtime", name, self.host, self.host + took, {"cbid": 211, "correlation": self.correlation})
        self.host += took
        return self.correlation

    def on_gpu(self, category, name, took, correlation, args):
        begin = max(self.gpu, self.host + REACH_US)
        where = {"device": 0, "context": 1, "stream": STREAM, "correlation": correlation}
        self.span(category, name, begin, begin + took, {**where, **args}, tid=STREAM, pid=0)
        for phase, tid, pid, at in (("s", PID, PID, self.host), ("f", STREAM, 0, begin)):
            self.write(ph=phase, id=correlation, pid=pid, tid=tid, ts=round(at, 3), cat="ac2g", name="ac2g")
        self.gpu = begin + took

    def nested(self, frames, ops, work):
        """Runs `work` within Python functions and operators, the outermost first; their ends are known afterwards."""
        begin = self.host
        names = [("python_function", name, {"Python id": self.count}) for name in frames]
        names += [("cpu_op", name, args) for name, args in ops]
        self.host += 0.5 * len(names)
        work()
        self.host += 0.5 * len(names)
        for depth, (category, name, args) in enumerate(names):
            if category == "cpu_op" or self.options.stacks:
                self.span(category, name, begin + 0.5 * depth, self.host - 0.5 * depth, args)

    def kernel(self, number):
        def launch():
            correlation = self.call("cudaLaunchKernel", LAUNCH_US)
            grid = {"grid": [128, 1, 1], "block": [256, 1, 1], "est. achieved occupancy %": 50}
            self.on_gpu("kernel", f"void gemm_{number % 7}<float>(float*)", self.options.kernel_us, correlation, grid)

        frames = ["train.py(20): step", "torch/nn/modules/module.py(1770): _wrapped_call_impl", "model.py(8): forward"]
        ops = [("aten::linear", {"External id": number}), ("aten::addmm", {"External id": number + 1})]
        self.nested(frames, ops, launch)

    def copy_in(self, size, kind):
        def copy():
            took = size / 1e6 * WIRE_US_PER_MB[kind] + 2
            blocking = kind == "Pageable" or self.options.blocking
            correlation = self.call("cudaMemcpyAsync", LAUNCH_US)
            self.on_gpu("gpu_memcpy", f"Memcpy HtoD ({kind} -> Device)", took, correlation, {"bytes": size})
            if blocking:
                self.synchronize()

        types = {"Input type": ["float", "float"], "Input Dims": [[size // 4], [size // 4]]}
        ops = [("aten::to", {}), ("aten::_to_copy", {}), ("aten::copy_", types)]
        self.nested(["train.py(14): to_gpu", "<built-in method to of Tensor object at 0x7f3a>"], ops, copy)

    def synchronize(self):
        self.call("cudaStreamSynchronize", max(2.0, self.gpu - self.host))

    def read_loss(self):
        def read():
            correlation = self.call("cudaMemcpyAsync", LAUNCH_US)
            self.on_gpu("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 1.5, correlation, {"bytes": 4})
            self.synchronize()

        self.nested(["train.py(31): log"], [("aten::item", {}), ("aten::_local_scalar_dense", {})], read)

    def step(self, number):
        options = self.options
        begin = self.host
        if options.loader_us:
            name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
            self.span("user_annotation", name, begin, begin + options.loader_us, {})
            self.host += options.loader_us
        for _ in range(options.tensors):
            self.copy_in(options.bytes, "Pageable" if options.pageable else "Pinned")
        for kernel in range(options.kernels):
            self.kernel(kernel)
        if options.item:
            self.read_loss()
        # The host may be at most a step ahead, as an allocator or a queue of launches makes it.
        self.host = max(self.host, self.gpu - options.kernels * options.kernel_us)
        self.span("user_annotation", f"ProfilerStep#{number}", begin, self.host, {})
        if options.stacks:
            self.span("python_function", "train.py(40): train", begin, self.host, {"Python id": 0})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--events", type=int, default=0, help="go on until there are so many, in place of --steps")
    parser.add_argument("--kernels", type=int, default=60, help="of a step")
    parser.add_argument("--kernel-us", type=float, default=30.0)
    parser.add_argument("--tensors", type=int, default=2, help="that a step copies to the GPU")
    parser.add_argument("--bytes", type=int, default=4_000_000, help="of a tensor")
    parser.add_argument("--loader-us", type=float, default=20.0, help="the loop waits for a batch")
    parser.add_argument("--pageable", action="store_true", help="batches are not pinned")
    parser.add_argument("--blocking", action="store_true", help="copies block the host")
    parser.add_argument("--item", action="store_true", help="the loss is read in each step")
    parser.add_argument("--no-stacks", dest="stacks", action="store_false")
    options = parser.parse_args()
    pack = gzip.open if options.file.endswith(".gz") else open
    with pack(options.file, "wt") as file:
        file.write('{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "Simulated GPU"}],\n')
        file.write('"displayTimeUnit": "ms", "baseTimeNanoseconds": 0, "traceEvents": [')
        trace = Trace(file, options)
        number = 0
        while trace.count < options.events or (options.events == 0 and number < options.steps):
            trace.step(number)
            number += 1
        file.write('\n], "traceName": "simulated"}\n')
    print(f"{number} steps, {trace.count} events")


if __name__ == "__main__":
    main()
