"""penstock feeds GPUs: it moves data from CPU memory to a GPU as fast as the link allows.

for x, y in penstock.feed(loader, device="cuda"):   # any iterable of batches, such as a DataLoader
    ...
on_gpu = penstock.to_device(tree, "cuda")            # any nest of tensors and arrays
back = penstock.to_host(on_gpu)
penstock.move_(model, "cuda")                        # a module, in place
"""

from ._core import Array, DeviceInfo, __version__
from ._devices import devices, missing_devices
from ._doctor import diagnose
from ._errors import Closed, DeviceError, Error, InvalidArgument, NotShardedWarning, OutOfMemory, Unsupported
from ._feed import Feed, feed
from ._loader import Loader
from ._modules import move_
from ._nests import register_batch_type
from ._process_group import ProcessGroup
from ._sampler import Sampler
from ._saving import PendingSave, save_safetensors
from ._shared_dataset import SharedDataset
from ._statistics import FeedStatistics, LoaderStatistics
from ._transfers import to_device, to_host
from ._verdict import LoaderVerdict
from ._weights import SafetensorsInfo, TensorInfo, load_safetensors, safetensors_info
from ._worker_feed import worker_memory_limit
from ._worth import Worth, worth

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
    "LoaderStatistics",
    "LoaderVerdict",
    "NotShardedWarning",
    "OutOfMemory",
    "PendingSave",
    "ProcessGroup",
    "SafetensorsInfo",
    "Sampler",
    "SharedDataset",
    "TensorInfo",
    "Unsupported",
    "Worth",
    "__version__",
    "devices",
    "diagnose",
    "feed",
    "load_safetensors",
    "missing_devices",
    "move_",
    "register_batch_type",
    "safetensors_info",
    "save_safetensors",
    "to_device",
    "to_host",
    "worker_memory_limit",
    "worth",
]
