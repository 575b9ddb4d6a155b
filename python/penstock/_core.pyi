"""The C++ side of penstock; `import penstock` instead."""

from collections.abc import Callable, Mapping, Sequence
import os
import pathlib
from typing import Annotated, Final, overload

import numpy
from numpy.typing import NDArray


class DeviceInfo:
    """A device of this machine."""

    @property
    def spec(self) -> str:
        """The name that `device=` takes: "cuda:0", "host"."""

    @property
    def backend(self) -> str:
        """"cuda" or "host"."""

    @property
    def index(self) -> int: ...

    @property
    def name(self) -> str:
        """"NVIDIA H200"."""

    @property
    def uuid(self) -> str: ...

    @property
    def driver(self) -> str:
        """
        The CUDA version that the driver supports; for the host, penstock's version.
        """

    @property
    def pci_bus_id(self) -> str: ...

    @property
    def memory_bytes(self) -> int: ...

    @property
    def numa_node(self) -> int:
        """-1: unknown or none."""

    def __repr__(self) -> str: ...

def inventory() -> tuple[list[DeviceInfo], list[str]]:
    """
    The devices of this machine, GPUs first, and a sentence for each that is missing.
    """

def share_processors(processes: int) -> None:
    """
    Tells that so many processes of this host, with this one, move data at the same time.
    """

def processors() -> int:
    """The processors that this process may use."""

class Array:
    """
    An array on a GPU, which penstock returns if PyTorch is not imported. CuPy, JAX and
    others take it by DLPack (`cupy.from_dlpack(array)`) without a copy, Numba by
    `__cuda_array_interface__`. A stream that takes an array must outlive it.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent of each axis."""

    @property
    def dtype(self) -> str:
        """Name of the element type: "float32", "bfloat16", ..."""

    @property
    def nbytes(self) -> int: ...

    @property
    def __cuda_array_interface__(self) -> dict:
        """
        Blocks the host until the transfer is done. AttributeError for bfloat16.
        """

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None, dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> object:
        """
        A DLPack capsule. Later work of `stream` waits for the transfer; the host does not.
        """

    def __dlpack_device__(self) -> tuple[int, int]: ...

    def __repr__(self) -> str: ...

class Flight:
    """A nest on its way to a device."""

    def land(self) -> object:
        """The nest with its arrays on the device; callable once."""

    def release_sources(self) -> None:
        """Blocks until the arrays that were sent are no longer read."""

    @property
    def bytes(self) -> int:
        """Bytes of the arrays that are sent."""

    @property
    def arrays(self) -> int:
        """Number of arrays that are sent."""

    @property
    def samples(self) -> int:
        """Extent of the first array's first axis; 0 if there is none."""

class Engine:
    """Sends to one device."""

    def __init__(self, spec: str, cache_directory: str | os.PathLike | None = None) -> None: ...

    def send(self, tree: object | None, expand: object, pin: bool = False) -> Flight: ...

    def close(self) -> None: ...

    def in_flight(self) -> int:
        """Sets of transfers that nobody waits for and that are not done."""

    def reaches(self, other: Engine) -> bool:
        """Whether copies on this device can name memory of the other."""

    @property
    def ceilings(self) -> tuple[float, float]:
        """
        The link's measured bytes per second, from the device and to it; 0 if nobody has measured it.
        """

    def pinned_room(self) -> tuple[int, int]:
        """
        What the budget of its pinned pool leaves, and bytes that the pool holds for later.
        """

    def made(self, address: int) -> bool:
        """
        Whether an address of the device lies in a tensor that penstock has made.
        """

    @property
    def spec(self) -> str: ...

    @property
    def memory_bytes(self) -> int: ...

    @property
    def numa_node(self) -> int: ...

    @property
    def is_cuda(self) -> bool: ...

    @property
    def index(self) -> int: ...

def use_exchange_api(use: bool) -> None: ...

class FlightToAll:
    """A nest on its way to all devices of a group."""

class Group:
    """Sends to several devices over the links of all."""

    def __init__(self, engines: Sequence[Engine], cache_directory: str | os.PathLike | None = None) -> None: ...

    def carried(self) -> list[int]:
        """Bytes that each device has pulled over its link so far."""

    def close(self) -> None: ...

class GroupBoard:
    """The processes of a group; use penstock.ProcessGroup."""

    def __init__(self, *, key: str, rank: int, processes: int, timeout_seconds: float) -> None: ...

class Destination:
    """Devices, and the links over which they are fed."""

    @staticmethod
    def device(engine: Engine) -> Destination: ...

    @staticmethod
    def group(group: Group, relays: bool) -> Destination:
        """
        All devices of a group; if it `relays`, the first alone, over the links of all.
        """

    @staticmethod
    def rank(engine: Engine, board: GroupBoard) -> Destination:
        """This process's device, in a group of processes."""

    def send(self, tree: object | None, expand: Sequence[object]) -> list[Flight]:
        """
        Sends a nest: a flight to each device that receives. With other processes, they send an equal nest, and it blocks until it is there.
        """

    def tell(self, error: object) -> None:
        """
        Has the other processes fail, in place of sending; without any, does nothing.
        """

def fetch(tree: object | None, expand: object, host_engines: Sequence[Engine], cuda_engine: object, pinning_engine: Engine | None = None) -> object:
    """A nest with its arrays in new memory of the host."""

def fetch_into(tree: object | None, out: object | None, expand: object, outputs: object, host_engines: Sequence[Engine], cuda_engine: object) -> None:
    """Copies the arrays of a nest into those of another."""

class WeightTensor:
    """A tensor of a .safetensors file."""

    @property
    def name(self) -> str: ...

    @property
    def type(self) -> str:
        """As the file writes it."""

    @property
    def shape(self) -> list[int]: ...

    @property
    def nbytes(self) -> int: ...

class WeightRows:
    """A range of a tensor's first axis, as a slice."""

    def __init__(self, begin: int | None, end: int | None) -> None: ...

class WeightFile:
    """The header of a .safetensors file, which stays open."""

    @property
    def path(self) -> pathlib.Path: ...

    @property
    def tensors(self) -> list[WeightTensor]:
        """In the order of the file."""

    @property
    def metadata(self) -> dict[str, str]: ...

def read_weight_headers(files: Sequence[str | os.PathLike]) -> list[WeightFile]:
    """Reads no tensor."""

class WeightLoad:
    """Loads .safetensors files to devices, in steps."""

    def __init__(self, destination: Destination, files: Sequence[str | os.PathLike], names: Sequence[str] | None = None, rows: Mapping[str, WeightRows] = {}) -> None: ...

    def opaque(self) -> list[WeightTensor]:
        """
        The tensors that will be arrays of bytes, along one axis: those of a type that has no DType.
        """

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors to load."""

    @property
    def bytes_read(self) -> int:
        """Bytes that this process has read so far."""

    def start(self) -> None:
        """Allocates the memory, makes the tensors, and begins to read."""

    def fill_with_ranks(self) -> bool:
        """
        Blocks until all bytes are in their place, in all processes. False: call `send_all`.
        """

    def send_all(self) -> None:
        """Begins to read, for this process alone."""

    def wait(self) -> None:
        """Blocks until all bytes are in their place."""

    def cancel(self) -> None:
        """Has `wait` end soon."""

    def finish(self) -> list[dict]:
        """The tensors by name, of each device; callable once, after `wait`."""

class WeightSave:
    """The bytes of a .safetensors file in memory of the host."""

    def write(self, file: str | os.PathLike) -> None:
        """Writes the file whole, or leaves what is there."""

    def cancel(self) -> None:
        """Has `write` end soon."""

def copy_weights(names: Sequence[str], arrays: list, opaque: Mapping[str, tuple[str, Sequence[int]]], metadata: Mapping[str, str], host_engines: Sequence[Engine], cuda_engine: object, kept: WeightSave | None) -> WeightSave:
    """
    Copies tensors to where they lie in a .safetensors file. Blocks until the bytes are there.
    """

class Passage:
    """Bytes on their way into a ParkedBlock or out of it."""

    def wait(self) -> None:
        """Blocks until all bytes are there."""

class ParkedBlock:
    """Memory of the host for bytes of a device's tensors."""

    def __init__(self, engine: Engine, bytes: int, pinned: bool) -> None: ...

    def down(self, pieces: Sequence[tuple[int, int, int]]) -> Passage:
        """
        Copies pieces into the block: (address on the device, offset in the block, bytes).
        """

    def up(self, pieces: Sequence[tuple[int, int, int]]) -> Passage:
        """Copies pieces back to the device."""

class FilledSlot:
    """
    A slot that a worker process has filled. It is free when its arrays are gone.
    """

    def array(self, for_torch: bool, offset: int, code: int, bits: int, shape: Sequence[int], strides: Sequence[int]) -> object:
        """An array in the slot. `strides` in elements."""

    @overload
    def is_seen(self, flight: Flight) -> bool:
        """
        True if arrays of the slot are left, other than those that are being sent.
        """

    @overload
    def is_seen(self, flight: FlightToAll) -> bool: ...

    @property
    def locked(self) -> bool:
        """True if the device reads the slot where it lies."""

class SharedSlots:
    """Slots of shared memory that worker processes fill."""

    def __init__(self, slots: int, most_bytes: int, numa_node: int) -> None: ...

    @staticmethod
    def attach(file: int, slots: int, most_bytes: int) -> SharedSlots: ...

    @property
    def file(self) -> int: ...

    @property
    def slots(self) -> int: ...

    @property
    def most_bytes(self) -> int: ...

    def claim(self, slot: int) -> memoryview | None: ...

    def give_up(self, slot: int) -> None: ...

    def allow(self, slot: int, bytes: int) -> None: ...

    def allowed(self, slot: int) -> int: ...

    def take(self, slot: int) -> FilledSlot: ...

    def return_lent(self) -> None: ...

    @property
    def retired(self) -> int: ...

    def lock_soon(self, filled: FilledSlot, engine: Engine) -> None:
        """
        Has the slot locked once the batch is gone. Says in `filled` whether it is locked already.
        """

    @property
    def why_not_locked(self) -> str:
        """Why a lock was refused; empty if none was."""

    def end_locks(self) -> None:
        """Waits for the lock that is being made, and makes none any more."""

    def reclaim(self) -> None: ...

def forks_are_workers(workers: bool) -> bool:
    """
    Whether this thread forks workers from now on. Returns what it was before.
    """

def host_memory_bytes() -> int:
    """Memory of the host that this process may use."""

def free_host_memory_bytes() -> int:
    """
    Memory of the host that this process may still take, as its control groups allow.
    """

class FixedBatches:
    """Memory at fixed addresses, for batches in turn."""

    def __init__(self, sets: int, mark: object) -> None: ...

    @property
    def sets(self) -> int: ...

    def next_is_free(self) -> bool:
        """False if somebody keeps batches whose memory the next one needs."""

def refuse_kept() -> None:
    """Raises InvalidArgument for a batch that is kept."""

class FeedStatistics:
    """
    What a feed did, and where its time went. docs/statistics.md explains each figure.
    """

    @property
    def samples(self) -> int: ...

    @property
    def batches(self) -> int: ...

    @property
    def samples_per_second(self) -> float: ...

    @property
    def arrays(self) -> int: ...

    @property
    def delivered_bytes(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    @property
    def delivered_gbps(self) -> float: ...

    @property
    def link_bytes(self) -> int: ...

    @property
    def link_gbps(self) -> float: ...

    @property
    def link_ceiling(self) -> float: ...

    @property
    def link_efficiency(self) -> float: ...

    @property
    def resident_bytes(self) -> int: ...

    @property
    def resident_seconds(self) -> float: ...

    @property
    def seconds(self) -> float: ...

    @property
    def epochs(self) -> int: ...

    @property
    def timed_batches(self) -> int: ...

    @property
    def compute_seconds(self) -> float: ...

    @property
    def stall_seconds(self) -> float: ...

    @property
    def stall_share(self) -> float: ...

    @property
    def first_stall_seconds(self) -> float: ...

    @property
    def exposed_loader_seconds(self) -> float: ...

    @property
    def exposed_transfer_seconds(self) -> float: ...

    @property
    def exposed_gather_seconds(self) -> float: ...

    @property
    def exposed_send_seconds(self) -> float: ...

    @property
    def exposed_kernel_seconds(self) -> float: ...

    @property
    def stall_other_seconds(self) -> float: ...

    @property
    def startup_seconds(self) -> float: ...

    @property
    def loader_seconds(self) -> float: ...

    @property
    def loader_share(self) -> float: ...

    @property
    def fetch_seconds(self) -> float: ...

    @property
    def collate_seconds(self) -> float: ...

    @property
    def transport_seconds(self) -> float: ...

    @property
    def pin_seconds(self) -> float: ...

    @property
    def send_seconds(self) -> float: ...

    @property
    def send_share(self) -> float: ...

    @property
    def send_pin_seconds(self) -> float: ...

    @property
    def gather_seconds(self) -> float: ...

    @property
    def gather_share(self) -> float: ...

    @property
    def transfer_seconds(self) -> float: ...

    @property
    def transfer_share(self) -> float: ...

    @property
    def transfer_gbps(self) -> float: ...

    @property
    def kernel_seconds(self) -> float: ...

    @property
    def kernel_share(self) -> float: ...

    @property
    def mean_ready(self) -> float: ...

    @property
    def prefetch_depth(self) -> int: ...

    @property
    def slot_wait_seconds(self) -> float: ...

    @property
    def slots(self) -> int: ...

    @property
    def ring_bytes(self) -> int: ...

    @property
    def land_seconds(self) -> float: ...

    @property
    def consumer_seconds(self) -> float: ...

    @property
    def sample_bytes(self) -> int: ...

    @property
    def limited_by(self) -> str: ...

    def as_dict(self) -> dict:
        """Every figure that applies, and the sentence, by name."""

    def lines(self) -> list[tuple[str, str]]:
        """Names and texts, as printed."""

    def sentence(self) -> str:
        """What sets the pace, with figures of the table, and what to do next."""

    def __str__(self) -> str: ...

    def __repr__(self) -> str: ...

class BatchTimes:
    """When the stages of one batch began and ended, in seconds on one clock."""

    @property
    def epoch(self) -> int: ...

    @property
    def batch(self) -> int: ...

    @property
    def samples(self) -> int: ...

    @property
    def link_bytes(self) -> int: ...

    @property
    def loader_begin(self) -> float: ...

    @property
    def loader_end(self) -> float: ...

    @property
    def gather_begin(self) -> float: ...

    @property
    def gather_end(self) -> float: ...

    @property
    def transfer_begin(self) -> float: ...

    @property
    def transfer_end(self) -> float: ...

    @property
    def asked(self) -> float: ...

    @property
    def arrived(self) -> float: ...

    def __repr__(self) -> str: ...

class FeedAccount:
    """The account of a feed."""

    def __init__(self, engine: Engine, prefetch_depth: int) -> None: ...

    def stats(self) -> FeedStatistics: ...

    def timeline(self) -> list[BatchTimes]: ...

    def no_stages(self, why: str) -> None:
        """Why the wrapped loader's stages are not timed; empty if they are."""

    def of_workers(self, count: int, starts_workers: bool) -> None:
        """
        How many workers the wrapped loader has, and whether it may start them in each epoch.
        """

    @property
    def batches(self) -> int:
        """Batches that were handed out."""

class FeedIteration:
    """One iteration of a feed, for its account."""

    def __init__(self, account: FeedAccount) -> None: ...

    def ask(self, ready: int) -> None: ...

    def load(self) -> None: ...

    def loaded(self) -> None: ...

    def staged(self, fetch: float, collate: float, write: float, receive: float, pin: float) -> None: ...

    def unstaged(self) -> None: ...

    def pinned(self, seconds: float) -> None: ...

    def send(self, tree: object | None, expand: object, pin: bool, slot: FilledSlot | None = None, fixed: FixedBatches | None = None) -> Flight: ...

    def send_to_all(self, group: Group, tree: object | None, expand: Sequence[object], slot: FilledSlot | None = None) -> FlightToAll: ...

    @overload
    def land(self, flight: Flight) -> object: ...

    @overload
    def land(self, flight: FlightToAll) -> object: ...

    def leave(self, over: bool) -> None: ...

class FileField:
    """An array that the library reads: in a file, in chunks, or decoded."""

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> object:
        """One sample, in memory of its own."""

def chunks_field(arrays: list, rows: bytes) -> FileField:
    """
    The rows of arrays, one behind the other, or in the order `rows` of 64-bit numbers.
    """

def open_files(path: str | os.PathLike) -> list[FileField]:
    """
    The arrays of a file, or of the files of a directory: see open_dataset.
    """

class PictureFailures:
    """The pictures that could not be read."""

    def __init__(self) -> None: ...

    @property
    def all(self) -> dict[int, str]:
        """What is wrong with each sample."""

class EncodedPictures:
    """Encoded pictures; use penstock.Pictures."""

    @staticmethod
    def folder(path: str | os.PathLike) -> EncodedPictures: ...

    @staticmethod
    def files(paths: list, names: list = [], places: Sequence[int] = [], labels: Sequence[int] = []) -> EncodedPictures: ...

    @staticmethod
    def encoded(pictures: list) -> EncodedPictures: ...

    @staticmethod
    def at_addresses(begins: Sequence[int], bytes: Sequence[int], owner: object) -> EncodedPictures: ...

    def __len__(self) -> int: ...

    @property
    def labels(self) -> bytes:
        """int64, one for each picture, or none."""

    @property
    def classes(self) -> list[str]: ...

    def name(self, picture: int) -> pathlib.Path: ...

def picture_field(source: EncodedPictures, operations: Sequence[tuple[str, Sequence[float]]], bicubic: bool, seed: int, channels_last: bool, failures: PictureFailures | None) -> FileField:
    """Decodes each picture when it is read: see read_pictures."""

class NativeLoader:
    """The C++ loader; use penstock.Loader."""

    def __init__(self, destination: Destination, fields: Sequence[tuple[str, object]], field_options: Sequence[tuple[str, str | None, Sequence[float], Sequence[float], int]], *, batch_size: int, shuffle: bool, seed: int, drop_last: bool, batch_sampler: object | None, rank: int, world_size: int, prefetch_depth: int, residency: str, gather: str, gather_blocks: int, narrow: bool, data_may_change: bool, device_budget_bytes: int, row_budget_bytes: int = 0, threads: int, when_full: str, mark: object | None = None) -> None: ...

    def start_epoch(self, epoch: int) -> None: ...

    def next_into(self, made: list, watch: TensorWatch | None = None) -> bool:
        """
        Appends the next batch, or None at the end of an epoch. False, without a batch, if a tensor of `watch` has changed. No signal's handler comes between taking the batch and appending it.
        """

    def leave_epoch(self) -> None:
        """
        Blocks until nothing reads the data any more, before an epoch is started.
        """

    def end_leases(self) -> bool:
        """
        Ends the leases of batches that nobody keeps. False if somebody keeps one for too long.
        """

    def state_dict(self, handed_out: bool = True) -> dict:
        """
        The place after the batches that were given: before the latest one if it is not `handed_out`.
        """

    def load_state_dict(self, state: dict) -> None: ...

    def stats(self) -> FeedStatistics: ...

    def member_stats(self, member: int) -> FeedStatistics:
        """The account of a device's own parts."""

    def timeline(self) -> list[BatchTimes]: ...

    def describe(self) -> list[str]: ...

    @property
    def batches_per_epoch(self) -> int: ...

    @property
    def samples_per_epoch(self) -> int: ...

    def close(self) -> None: ...

def default_row_budget(host_bytes: int) -> int:
    """
    The bytes of rows that a loader makes at most on a host with so much memory.
    """

def can_widen(from_dtype: str, to_dtype: str) -> bool:
    """True if a Loader can deliver one dtype as the other."""

class SharedFields:
    """Fields in pages that other processes have too."""

    @property
    def names(self) -> list[str]: ...

    @property
    def dtypes(self) -> list[str]: ...

    @property
    def note(self) -> bytes: ...

    @property
    def made_here(self) -> bool: ...

    @property
    def nbytes(self) -> int: ...

    def array(self, field: int, for_torch: bool) -> object:
        """All samples of a field, of which the array keeps the memory."""

def share_dataset(key: str, processes: int, make: Callable) -> SharedFields:
    """
    Calls `make` in the first process that comes, for a note, arrays by name, and paths of files in place of arrays. Blocks, and hears signals meanwhile.
    """

class NativeSampler:
    """The C++ sampler; use penstock.Sampler."""

    def __init__(self, *, sample_count: int, shuffle: bool, seed: int, drop_last: bool, rank: int, world_size: int) -> None: ...

    def next(self) -> bytes:
        """
        The next samples' indices, as the bytes of int64 numbers. Empty at the epoch's end.
        """

    def state_dict(self) -> dict: ...

    def load_state_dict(self, state: dict) -> None: ...

    @property
    def samples_per_epoch(self) -> int: ...

    @property
    def samples_left(self) -> int: ...

class TorchOrder:
    """
    Iterates over the first `wanted` numbers that torch.randperm(count) draws from a new generator of this seed, in blocks. For counts below `most`.
    """

    def __init__(self, seed: int, count: int, wanted: int) -> None: ...

    def __iter__(self) -> object: ...

    def __next__(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...

    @property
    def below(self) -> int:
        """All numbers are below it."""

    most: Final[int] = ...
    """(arg: object, /) -> int"""

class TensorWatch:
    """Watches tensors of PyTorch."""

    def __init__(self, tensors: Sequence[object]) -> None: ...

    def unchanged(self) -> bool:
        """
        True if none has another place, type or shape than at first, and PyTorch has written to none.
        """

def are_rows(indices: object | None, count: int) -> bool:
    """
    True for a NumPy array of int64 that lie side by side, each at least 0 and below `count`.
    """

def run_command(arguments: Sequence[bytes], python: str | os.PathLike) -> int:
    """Runs the command, once in a process, and returns its exit status."""
