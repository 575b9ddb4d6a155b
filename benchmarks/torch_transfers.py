"""PyTorch on the transfers of bench_engine: run it on the same machine, in the same hour.

Prints one line a transfer: median of the repetitions, bytes verified. Needs torch and a GPU.
"""

import argparse
import json
import statistics
import sys
import time


def median_seconds(body, repetitions, warm_up=2):
    seconds = []
    for i in range(repetitions + warm_up):
        begin = time.perf_counter()
        body()
        if i >= warm_up:
            seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1 << 30, help="bytes of the large transfers")
    parser.add_argument("--json", help="write the figures here")
    arguments = parser.parse_args()
    try:
        import torch
    except ImportError:
        sys.exit("torch_transfers: not measured, torch is not installed")
    if not torch.cuda.is_available():
        sys.exit("torch_transfers: not measured, torch sees no GPU")

    size = arguments.size
    pageable = torch.randint(0, 256, (size,), dtype=torch.uint8)
    pinned = pageable.pin_memory()
    on_gpu = torch.empty(size, dtype=torch.uint8, device="cuda")
    tensors = [torch.randint(0, 256, (4096,), dtype=torch.uint8) for _ in range(1000)]
    arrived = {}

    def copy(source, non_blocking):
        on_gpu.copy_(source, non_blocking=non_blocking)
        torch.cuda.synchronize()

    def to_gpu():
        arrived["pageable"] = pageable.to("cuda")
        torch.cuda.synchronize()

    def back():
        arrived["back"] = on_gpu.cpu()

    def pieces():
        arrived["pieces"] = [tensor.to("cuda") for tensor in tensors]
        torch.cuda.synchronize()

    results = {}
    for name, body, count, repetitions in [
        ("pinned H2D", lambda: copy(pinned, True), size, 15),
        ("pageable H2D, .to('cuda')", to_gpu, size, 5),
        ("pageable D2H, .cpu()", back, size, 5),
        ("1000 tensors of 4 KiB, .to('cuda') each", pieces, 4096000, 15),
    ]:
        seconds = median_seconds(body, repetitions)
        results[name] = {"median_seconds": seconds, "bytes": count}
        print(f"PyTorch {torch.__version__}  {name:42s} {seconds * 1e6:12.1f} µs  {count / seconds / 1e9:6.2f} GB/s")

    assert torch.equal(arrived["pageable"].cpu(), pageable)
    assert torch.equal(arrived["back"], pageable)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(arrived["pieces"], tensors, strict=True))
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(results, file, indent=2)


if __name__ == "__main__":
    main()
