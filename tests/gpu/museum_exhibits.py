"""The programs of the doctor's museum: each has one mistake, marked with HERE, or none."""

import dataclasses

# Programs that need the GPU for themselves start PyTorch, CUDA and the model beside others. Once all of them are ready,
# they take turns. A turn ends with the work: the interpreter's end is beside others again.
PRELUDE = """
import os
import torch
device = torch.device("cuda")
model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(8)]).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
resident = torch.rand(ROWS, WIDTH, device=device)

def train(x):
    optimizer.zero_grad(set_to_none=True)
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss

if path := os.environ.get("MUSEUM_TURN"):
    import atexit, fcntl, time
    for _ in range(3):
        train(resident)
    torch.cuda.synchronize()
    asked = time.monotonic()
    turn = open(path)
    open(os.environ["MUSEUM_READY"], "w").close()
    fcntl.flock(turn, fcntl.LOCK_EX)
    taken = time.monotonic()
    # Not the work of a step, or the wait would be the first step's.
    resident.cumsum(0)
    torch.cuda.synchronize()
    def end_turn():
        torch.cuda.synchronize()
        fcntl.flock(turn, fcntl.LOCK_UN)
        print(f"museum: waited {taken - asked:.1f} s, had its turn for {time.monotonic() - taken:.1f} s", flush=True)
    atexit.register(end_turn)
"""


def prelude(rows: int, width: int) -> str:
    return PRELUDE.replace("ROWS", str(rows)).replace("WIDTH", str(width))


LONG = prelude(1024, 2048)  # a step of some 5 ms
SHORT = prelude(2048, 1024)  # a step of some 2 ms, on which a pause of the host shows


def loader(seconds: float, batches: int) -> str:
    """A dataset whose samples take as long as decoding would."""
    return f"""
import time

class Decoded(torch.utils.data.Dataset):
    def __len__(self):
        return {batches} * 64

    def __getitem__(self, index):
        end = time.perf_counter() + {seconds}
        while time.perf_counter() < end:
            pass
        return torch.full((2048,), float(index % 7))
"""


@dataclasses.dataclass(frozen=True)
class Exhibit:
    name: str
    source: str  # behind the prelude; of a program in C++: its name in museum_programs.cu
    finding: str | None = None  # the id that is expected at HERE; None: the program is clean
    prelude: str = SHORT
    known: str = ""  # why the doctor may miss it
    fix: tuple[tuple[str, str], ...] = ()  # replacements in the source
    native: bool = False  # a program in C++
    needs: str = ""  # a package, without which it is left out
    may_come_later: str = ""  # why HERE may be another than the first place of the finding
    steps: int = 0  # that are found, give or take a tenth; 0: any number

    @property
    def alone(self) -> bool:
        """What is found depends on how long the GPU idles, so no other program may use it meanwhile."""
        timed = ("exposed-copies", "waiting-for-data", "contended-copies", "host-work")
        return self.finding is None or self.finding in timed

    def text(self, fixed: bool = False) -> str:
        source = self.source
        for old, new in self.fix if fixed else ():
            if source.count(old) != 1:
                raise ValueError(f"{self.name}: {old!r} is not in it once")
            source = source.replace(old, new)
        return source if self.native else self.prelude + source


PAGEABLE = [
    Exhibit(
        "pageable batches",
        """
data = torch.rand(4, 1024, 2048)
for i in range(100):
    x = data[i % 4].to(device)  # HERE
    train(x)
""",
        "pageable-copies",
        LONG,
        fix=(("2048)", "2048).pin_memory()"), ("to(device)", "to(device, non_blocking=True)")),
    ),
    Exhibit(
        "pageable, non_blocking",
        """
data = torch.rand(4, 1024, 2048)
def to_gpu(x):
    return x.to(device, non_blocking=True)  # HERE
for i in range(100):
    train(to_gpu(data[i % 4]))
""",
        "pageable-copies",
        LONG,
        fix=(("2048)", "2048).pin_memory()"),),
    ),
    Exhibit(
        "batches of varying length",
        """
data = torch.rand(1024, 2048)
for i in range(100):
    x = data[: 512 + 16 * (i * 11 % 31)].to(device)  # HERE
    train(x)
""",
        "pageable-copies",
        LONG,
    ),
    Exhibit(
        "pinned a copy, sent the original",
        """
data = torch.rand(4, 2048, 1024)
for i in range(60):
    x = data[i % 4]
    x.pin_memory()
    train(x.to(device, non_blocking=True))  # HERE
""",
        "pageable-copies",
    ),
    Exhibit(
        "weights through a mapping",
        """
import numpy, tempfile
file = tempfile.NamedTemporaryFile()
numpy.full((8, 1024, 1024), 1e-3, numpy.float32).tofile(file)
weights = torch.from_numpy(numpy.memmap(file.name, numpy.float32, "c", shape=(8, 1024, 1024)))
for _ in range(40):
    for layer, values in zip(model, weights):
        layer.weight.data = values.to(device)  # HERE
    train(resident)
""",
        "pageable-copies",
        fix=(("shape=(8, 1024, 1024)))", "shape=(8, 1024, 1024))).to(device)"),),
    ),
    Exhibit(
        "noise made on the host",
        """
for _ in range(40):
    noise = torch.randn(2048, 1024)
    train(resident + noise.cuda())  # HERE
""",
        "pageable-copies",
        fix=(("1024)", "1024, device=device)"),),
    ),
    Exhibit(
        "token ids from a list",
        """
ids = [[(row * column) % 50000 for column in range(2048)] for row in range(16)]
table = torch.nn.Embedding(50000, 64, device=device)
for _ in range(40):
    tokens = torch.tensor(ids, device=device)  # HERE
    train(table(tokens).detach().view(-1, 1024))
""",
        "pageable-copies",
    ),
    Exhibit(
        "a module moved to the host and back",
        """
teacher = torch.nn.Linear(1024, 1024, device=device)
for _ in range(60):
    teacher.to(device)  # HERE
    with torch.no_grad():
        target = teacher(resident)
    teacher.cpu()
    train(target)
""",
        "pageable-copies",
        fix=(("    teacher.cpu()\n", ""),),
    ),
    Exhibit(
        "C++: cudaMemcpy of pageable memory", "pageable", "pageable-copies", native=True, fix=(("pageable", "pinned"),)
    ),
    Exhibit("C++: cudaMemcpyAsync of pageable memory", "async", "pageable-copies", native=True),
]

COPIES = [
    Exhibit(
        "pinned, but blocking",
        """
data = torch.rand(4, 4096, 2048).pin_memory()
for i in range(80):
    x = data[i % 4].to(device)  # HERE
    train(x[:1024])
""",
        "blocking-copies",
        LONG,
        fix=(("to(device)", "to(device, non_blocking=True)"),),
    ),
    Exhibit(
        "pinned, nothing overlaps",
        """
data = torch.rand(4, 8192, 2048).pin_memory()
for i in range(80):
    x = data[i % 4].to(device, non_blocking=True)  # HERE
    train(x[:1024])
""",
        "exposed-copies",
        LONG,
        fix=(
            (
                "for i in",
                """side = torch.cuda.Stream()
def fetch(i):
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        return data[i % 4].to(device, non_blocking=True)
ahead = fetch(0)
for i in""",
            ),
            (
                "    x = data[i % 4].to(device, non_blocking=True)",
                """    torch.cuda.current_stream().wait_stream(side)
    x, ahead = ahead, fetch(i + 1)
    x.record_stream(torch.cuda.current_stream())""",
            ),
        ),
    ),
    Exhibit(
        "a side stream, but too late",
        """
data = torch.rand(4, 8192, 1024).pin_memory()
side = torch.cuda.Stream()
for i in range(80):
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x = data[i % 4].to(device, non_blocking=True)  # HERE
    torch.cuda.current_stream().wait_stream(side)
    x.record_stream(torch.cuda.current_stream())
    train(x[:2048])
""",
        "exposed-copies",
    ),
    Exhibit(
        "114 small tensors a batch",
        """
data = [torch.rand(1024).pin_memory() for _ in range(114)]
for _ in range(80):
    batch = [part.to(device, non_blocking=True) for part in data]  # HERE
    train(resident + batch[0][0])
""",
        "small-copies",
        LONG,
        fix=(
            (" for _ in range(114)]", " for _ in range(114)]\npacked = torch.stack(data).pin_memory()"),
            ("[part.to(device, non_blocking=True) for part in data]", "packed.to(device, non_blocking=True)"),
        ),
    ),
    Exhibit(
        "boxes and labels one by one",
        """
targets = [{"boxes": torch.rand(8, 4), "labels": torch.arange(8)} for _ in range(32)]
for _ in range(60):
    batch = [{name: value.to(device) for name, value in target.items()} for target in targets]  # HERE
    train(resident)
""",
        "small-copies",
    ),
    Exhibit(
        "the same batch again",
        """
batch = torch.rand(2048, 1024).pin_memory()
for _ in range(80):
    x = batch.to(device, non_blocking=True)  # HERE
    train(x)
""",
        "same-data-again",
        fix=(("pin_memory()", "pin_memory().to(device)"),),
    ),
    Exhibit(
        "a small copy behind a large one",
        """
data = torch.rand(2, 8192, 1024).pin_memory()
shifts = torch.rand(4, 16, 1024).pin_memory()
side = torch.cuda.Stream()
total = 0.0
for i in range(60):
    with torch.cuda.stream(side):
        ahead = data[i % 2].to(device, non_blocking=True)
    shift = shifts[i % 4].to(device, non_blocking=True)  # HERE
    total += train(resident + shift.mean()).item()
""",
        "contended-copies",
        fix=(
            (
                """    with torch.cuda.stream(side):
        ahead = data[i % 2].to(device, non_blocking=True)
    shift = shifts[i % 4].to(device, non_blocking=True)  # HERE
""",
                """    shift = shifts[i % 4].to(device, non_blocking=True)
    with torch.cuda.stream(side):
        ahead = data[i % 2].to(device, non_blocking=True)
""",
            ),
        ),
    ),
    Exhibit(
        "a round trip over the host",
        """
for _ in range(60):
    hidden = model[0](resident).detach()
    shifted = hidden.cpu() + 1
    train(shifted.to(device))  # HERE
""",
        "round-trips",
        LONG,
        fix=(("hidden.cpu() + 1", "hidden + 1"),),
        may_come_later="the copy to the host takes as long",
    ),
    Exhibit("C++: the same batch again", "pinned", "same-data-again", native=True, fix=(("pinned", "no_synchronize"),)),
    Exhibit("C++: 64 small copies", "small", "small-copies", native=True, fix=(("small", "one_copy"),)),
    Exhibit(
        "C++: copies on the default stream, kernels on a blocking one",
        "default_stream",
        "exposed-copies",
        native=True,
        fix=(("default_stream", "two_buffers"),),
    ),
    Exhibit(
        "C++: copies on a blocking stream, kernels on the default one",
        "blocking_stream",
        "exposed-copies",
        native=True,
        fix=(("blocking_stream", "two_buffers"),),
    ),
]

WAITS = [
    Exhibit(
        "item() in each step",
        """
total = 0.0
for _ in range(100):
    loss = train(resident)
    total += loss.item()  # HERE
""",
        "synchronizations",
        fix=(("total = 0.0", "total = torch.zeros((), device=device)"), ("loss.item()", "loss.detach()")),
    ),
    Exhibit(
        "cpu() in each step",
        """
losses = []
for _ in range(100):
    loss = train(resident)
    losses.append(loss.detach().cpu())  # HERE
""",
        "synchronizations",
        fix=((".detach().cpu()", ".detach()"),),
    ),
    Exhibit(
        "synchronize() in each step",
        """
for _ in range(100):
    train(resident)
    torch.cuda.synchronize()  # HERE
""",
        "synchronizations",
        fix=(("    torch.cuda.synchronize()", ""),),
    ),
    Exhibit(
        "nonzero() in each step",
        """
for _ in range(100):
    kept = (resident[:, 0] > 0.5).nonzero()  # HERE
    train(resident)
""",
        "synchronizations",
        fix=(("(resident[:, 0] > 0.5).nonzero()", "resident[:, 0] > 0.5"),),
    ),
    Exhibit(
        "a decision on the loss",
        """
for _ in range(100):
    loss = train(resident)
    if loss > 1e9:  # HERE
        break
""",
        "synchronizations",
        fix=(("    if loss > 1e9:", "    if False:"),),
    ),
    Exhibit(
        "a boolean mask",
        """
mask = torch.arange(2048, device=device) % 2 == 0
for _ in range(100):
    kept = resident[mask]  # HERE
    train(torch.cat([kept, kept]))
""",
        "synchronizations",
        fix=(("% 2 == 0", "% 2 == 0\nrows = mask.nonzero()[:, 0]"), ("resident[mask]", "resident[rows]")),
    ),
    Exhibit(
        "tolist() of each sample's loss",
        """
history = []
for _ in range(100):
    train(resident)
    errors = resident.square().mean(1)
    history.extend(errors.tolist())  # HERE
""",
        "synchronizations",
        fix=(("history.extend(errors.tolist())", "history.append(errors)"),),
    ),
    Exhibit(
        "the loss printed",
        """
for step in range(60):
    loss = train(resident)
    print(step, loss.detach())  # HERE
""",
        "synchronizations",
    ),
    Exhibit(
        "outputs of a validation copied back",
        """
with torch.no_grad():
    for _ in range(60):
        outputs = model(resident).softmax(1).cpu().numpy()  # HERE
""",
        "synchronizations",
    ),
    Exhibit(
        "a norm that must be finite",
        """
for _ in range(80):
    optimizer.zero_grad(set_to_none=True)
    model(resident).square().mean().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)  # HERE
    optimizer.step()
""",
        "synchronizations",
        fix=((", error_if_nonfinite=True", ""),),
    ),
    Exhibit(
        "lengths read one by one",
        """
lengths = torch.randint(1, 9, (16,), device=device)
for _ in range(80):
    longest = max([int(length) for length in lengths])  # HERE
    train(resident)
""",
        "synchronizations",
    ),
    Exhibit(
        "a timer around each step",
        """
begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
times = []
for _ in range(80):
    begin.record()
    train(resident)
    end.record()
    end.synchronize()  # HERE
    times.append(begin.elapsed_time(end))
""",
        "synchronizations",
    ),
    Exhibit(
        "a rate made a tensor in each step",
        """
for step in range(80):
    rate = torch.tensor(1e-6 * step, device=device)  # HERE
    train(resident * rate)
""",
        "synchronizations",
    ),
    Exhibit(
        "C++: cudaDeviceSynchronize in each step",
        "device_synchronize",
        "synchronizations",
        native=True,
        fix=(("device_synchronize", "no_synchronize"),),
    ),
    Exhibit("C++: cudaMemcpy of a loss to the host", "read_loss", "synchronizations", native=True),
    Exhibit(
        "C++: cudaMalloc and cudaFree in each step",
        "device_memory",
        "device-allocations",
        native=True,
        fix=(("device_memory", "no_synchronize"),),
    ),
]

HOST = [
    Exhibit(
        "registered in each step",
        """
data = torch.rand(1024, 2048)
cudart = torch.cuda.cudart()
for _ in range(60):
    cudart.cudaHostRegister(data.data_ptr(), data.numel() * 4, 0)  # HERE
    train(data.to(device, non_blocking=True))
    torch.cuda.synchronize()
    cudart.cudaHostUnregister(data.data_ptr())
""",
        "pinning",
        LONG,
        may_come_later="what takes longer, to register the memory or to unregister it, depends on the driver",
    ),
    Exhibit(
        "a new pinned buffer for each batch",
        """
data = torch.rand(2048, 1024)
history = []
for _ in range(60):
    history.append(torch.empty(2048, 1024, pin_memory=True))  # HERE
    history[-1].copy_(data)
    train(history[-1].to(device, non_blocking=True))
""",
        "pinning",
        fix=(
            ("history = []", "history = [torch.empty(2048, 1024, pin_memory=True)]"),
            ("    history.append(torch.empty(2048, 1024, pin_memory=True))", ""),
        ),
    ),
    Exhibit(
        "pin_memory() in each step",
        """
torch.set_num_threads(1)  # as torchrun has it
data = torch.rand(4, 24576, 1024)
for i in range(60):
    x = data[i % 4].pin_memory()  # HERE
    train(x.to(device, non_blocking=True)[:2048])
""",
        # PyTorch gives the same pinned memory again, so that only the host's copy into it takes time.
        "host-work",
        fix=(("1024)", "1024).pin_memory()"), ("data[i % 4].pin_memory()", "data[i % 4]")),
    ),
    Exhibit(
        "C++: cudaMallocHost in each step",
        "pinned_memory",
        "pinning",
        native=True,
        fix=(("pinned_memory", "pinned"),),
        may_come_later="cudaFreeHost waits for the kernels",
    ),
    Exhibit(
        "decoding in the loop",
        loader(0.0002, 60)
        + """
loader = torch.utils.data.DataLoader(Decoded(), batch_size=64, pin_memory=True)
for x in loader:  # HERE
    train(x.to(device, non_blocking=True).view(-1, 1024))
""",
        "waiting-for-data",
        fix=(("pin_memory=True", "pin_memory=True, num_workers=12"),),
    ),
    Exhibit(
        "a feed of a slow generator",
        """
import time
import penstock

class Batches:
    def __iter__(self):
        for i in range(60):
            time.sleep(0.01)
            yield torch.full((2048, 1024), float(i % 7))

for x in penstock.feed(Batches()):  # HERE
    train(x)
""",
        "waiting-for-data",
        fix=(("0.01", "0"),),
        needs="penstock",
    ),
    Exhibit(
        "two workers where ten pay",
        loader(0.0004, 120)
        + """
loader = torch.utils.data.DataLoader(Decoded(), batch_size=64, num_workers=2, pin_memory=True)
for x in loader:  # HERE
    train(x.to(device, non_blocking=True).view(-1, 1024))
""",
        "waiting-for-data",
        fix=(("num_workers=2", "num_workers=10"),),
    ),
    Exhibit(
        "compressed images, no workers",
        """
import numpy, zlib
pixels = numpy.random.default_rng(1).integers(0, 16, (32, 256, 256, 3), numpy.uint8)
files = [zlib.compress(image.tobytes(), 1) for image in pixels]

class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 60 * 16

    def __getitem__(self, index):
        return torch.frombuffer(bytearray(zlib.decompress(files[index % 32])), dtype=torch.uint8)

loader = torch.utils.data.DataLoader(Images(), batch_size=16, pin_memory=True)
for x in loader:  # HERE
    train(x.to(device, non_blocking=True).view(-1, 1024)[:2048].float())
""",
        "waiting-for-data",
    ),
    Exhibit(
        "garbage collection in the loader",
        """
import gc
annotations = [{"name": str(i), "boxes": [i, i + 1]} for i in range(80000)]

class Annotated(torch.utils.data.Dataset):
    def __len__(self):
        return 40 * 16

    def __getitem__(self, index):
        return torch.full((1024,), float(annotations[index]["boxes"][0] % 7))

def collate(samples):
    gc.collect()
    return torch.stack(samples)

loader = torch.utils.data.DataLoader(Annotated(), batch_size=16, collate_fn=collate)
for x in loader:  # HERE
    train(resident + x.to(device).mean())
""",
        "waiting-for-data",
    ),
    Exhibit(
        "compressed images, no DataLoader",
        """
import numpy, zlib
pixels = numpy.random.default_rng(1).integers(0, 16, (32, 256, 256, 3), numpy.uint8)
files = [zlib.compress(image.tobytes(), 1) for image in pixels]
batch = torch.empty(16, 256 * 256 * 3, dtype=torch.uint8).pin_memory()
for step in range(60):
    for i in range(16):
        batch[i] = torch.frombuffer(bytearray(zlib.decompress(files[i])), dtype=torch.uint8)  # HERE
    train(batch.to(device).view(-1, 1024)[:2048].float())
""",
        "host-work",
        fix=(
            (
                "for step in range(60):",
                "decoded = [torch.frombuffer(bytearray(zlib.decompress(f)), dtype=torch.uint8) for f in files[:16]]\n"
                "for step in range(60):",
            ),
            ("torch.frombuffer(bytearray(zlib.decompress(files[i])), dtype=torch.uint8)", "decoded[i]"),
        ),
    ),
]

CLEAN = [
    Exhibit(
        "clean: all on the GPU",
        """
total = torch.zeros((), device=device)
for _ in range(150):
    total += train(resident).detach()
print(total.item())
""",
        prelude=LONG,
    ),
    Exhibit(
        "clean: pinned and prefetched",
        """
data = torch.rand(4, 256, 2048).pin_memory()
side = torch.cuda.Stream()
def fetch(i):
    with torch.cuda.stream(side):
        return data[i % 4].to(device, non_blocking=True)
x = fetch(0)
for i in range(150):
    torch.cuda.current_stream().wait_stream(side)
    current, x = x, fetch(i + 1)
    current.record_stream(torch.cuda.current_stream())
    train(torch.cat([current] * 4))
torch.cuda.synchronize()
""",
        prelude=LONG,
    ),
    Exhibit(
        "clean: a captured graph",
        """
stream = torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(stream):
    for _ in range(3):
        train(resident)
torch.cuda.current_stream().wait_stream(stream)
graph = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    train(resident)
for _ in range(150):
    graph.replay()
torch.cuda.synchronize()
""",
        prelude=LONG,
    ),
    Exhibit(
        "clean: the loss every 100 steps",
        """
for step in range(190):
    loss = train(resident)
    if step % 100 == 50:
        print(step, loss.item())
""",
        prelude=LONG,
    ),
    Exhibit(
        "clean: the loss every 10 steps",
        """
small = [torch.rand(1024).pin_memory() for _ in range(4)]
for step in range(190):
    parts = [part.to(device, non_blocking=True) for part in small]
    loss = train(resident + parts[0][0])
    if step % 10 == 9:
        print(step, loss.item())
""",
        prelude=LONG,
        steps=190,
    ),
    Exhibit(
        "clean: a DataLoader that keeps up",
        """
class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.rows = torch.rand(4096, 256)

    def __len__(self):
        return 120 * 64

    def __getitems__(self, indices):
        return self.rows[[index % 4096 for index in indices]]

loader = torch.utils.data.DataLoader(Rows(), batch_size=64, num_workers=4, pin_memory=True, collate_fn=lambda x: x)
for x in loader:
    train(resident + x.to(device, non_blocking=True).mean())
""",
        prelude=LONG,
    ),
    Exhibit(
        "clean: penstock.Loader",
        """
import numpy, penstock
images = numpy.random.default_rng(1).integers(0, 256, (20 * 1024, 2048), numpy.uint8)
loader = penstock.Loader((images,), batch_size=1024, shuffle=True, device="cuda", to="float32", scale=1 / 255)
for _ in range(5):
    for (x,) in loader:
        train(x)
""",
        prelude=LONG,
        needs="penstock",
    ),
    Exhibit("clean: C++, two buffers", "two_buffers", native=True),
]

EXHIBITS = [*PAGEABLE, *COPIES, *WAITS, *HOST, *CLEAN]
