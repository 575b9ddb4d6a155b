"""penstock feeds GPUs: it moves data from CPU memory to a GPU as fast as the link allows.

    for x, y in penstock.feed(loader, device="cuda"):   # any iterable of batches, such as a DataLoader
        ...
    on_gpu = penstock.to_device(tree, "cuda")            # any nest of tensors and arrays
    back = penstock.to_host(on_gpu)
    penstock.move_(model, "cuda")                        # a module, in place

The docstrings of each have the details.
"""

from ._core import Array, DeviceInfo, __version__
from ._destination import relayed
from ._devices import devices
from ._doctor.examination import diagnose
from ._doctor.verdict import LoaderVerdict
from ._errors import Closed, DeviceError, Error, InvalidArgument, NotShardedWarning, OutOfMemory, Unsupported
from ._feed.workers import worker_memory_limit
from ._feed.wrapper import Feed, feed
from ._loader.loader import Loader
from ._loader.pictures import Pictures
from ._loader.replay import ReplayBuffer
from ._loader.sampler import Sampler
from ._loader.shared_dataset import SharedDataset
from ._loader.tokens import tokens
from ._loader.tuning import Tuning
from ._move.modules import move_
from ._move.nests import register_batch_type
from ._move.offloading import Offload, offload
from ._move.parking import Parked, ParkStatistics, park, parked, swap
from ._move.saving import PendingSave, save_safetensors
from ._move.transfers import to_device, to_host
from ._move.weights import SafetensorsInfo, TensorInfo, load_safetensors, safetensors_info
from ._process_group import ProcessGroup
from ._statistics import FeedStatistics

__all__ = [
    "Array",
    "Closed",
    "DeviceError",
    "DeviceInfo",
    "Error",
    "Feed",
    "FeedStatistics",
    "InvalidArgument",
    "Loader",
    "LoaderVerdict",
    "NotShardedWarning",
    "Offload",
    "OutOfMemory",
    "ParkStatistics",
    "Parked",
    "PendingSave",
    "Pictures",
    "ProcessGroup",
    "ReplayBuffer",
    "SafetensorsInfo",
    "Sampler",
    "SharedDataset",
    "TensorInfo",
    "Tuning",
    "Unsupported",
    "__version__",
    "devices",
    "diagnose",
    "feed",
    "load_safetensors",
    "move_",
    "offload",
    "park",
    "parked",
    "register_batch_type",
    "relayed",
    "safetensors_info",
    "save_safetensors",
    "swap",
    "to_device",
    "to_host",
    "tokens",
    "worker_memory_limit",
]
