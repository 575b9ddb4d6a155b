"""Which DataLoaders' batches are simply rows of tensors, and which rows."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from .. import _core
from .._loader.columns import is_a
from .._loader.indices import draw_seed, has_pieces
from .._loader.samplers import Several
from .pictures import folder_of, picture_rows

# The types of tensors that the native loader reads.
_INTEGERS = {"bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"}
_FLOATS = {"float16", "bfloat16", "float32", "float64"}
_MOST_AHEAD = 64
# A worker_init_fn that only seeds random numbers. Rows of tensors draw none.
_ONLY_SEEDS = {
    ("transformers.trainer_utils", "seed_worker"),
    ("lightning.fabric.utilities.seed", "pl_worker_init_function"),
    ("lightning_fabric.utilities.seed", "pl_worker_init_function"),
}


class Tensors(NamedTuple):
    """The tensors of a dataset. `build` makes a batch of a list with one array for each of them; None: it is that list.
    `picked`: the row in the tensors of each sample; None: sample i is row i. The first of them may be a field of
    pictures; `options` then says how a loader delivers it."""

    names: list[str]
    arrays: list[Any]
    build: Callable[[list[Any]], Any] | None
    picked: Any
    options: Sequence[Any] = ()

    @property
    def samples(self) -> int:
        return len(self.arrays[0]) if self.picked is None else len(self.picked)

    @property
    def in_memory(self) -> list[Any]:
        """Those that are tensors, and no pictures."""
        return [array for array in self.arrays if type(array) is not _core.FileField]

    @property
    def decodes(self) -> bool:
        return len(self.in_memory) < len(self.arrays)

    def memory(self) -> tuple:
        """Equal if the native loader may go on reading where it reads."""
        tensors = (
            (id(array), array.untyped_storage()._cdata, array.data_ptr(), array.dtype, array.shape)
            for array in self.in_memory
        )
        return *self.names, *map(id, self.arrays), *tensors

    def rows(self, batch: Any) -> Any:
        """The rows of a batch's samples, or of Several, as 64-bit numbers. None if an index is of another kind than a
        whole number, or out of bounds."""
        import numpy

        if type(batch) is Several:
            if self.picked is None and 0 < batch.below <= self.samples:
                return batch.rows
            rows = self.rows(batch.rows.reshape(-1))
            return None if rows is None else rows.reshape(batch.rows.shape)
        if self.picked is None and _core.are_rows(batch, self.samples):
            return batch
        indices = _whole_numbers(batch)
        if indices is not None:
            indices = _within(indices, self.samples)
        if indices is not None and self.picked is not None:
            indices = self.picked[indices]
        return None if indices is None else numpy.ascontiguousarray(indices).view(numpy.uint64)


def tensors_of(feed: Any) -> Tensors | str:
    """The tensors of a feed's dataset, or why the batches of its loader are not simply their rows."""
    loader = feed.loader
    module = sys.modules.get("torch.utils.data.dataloader")
    if not feed.native:
        return "native=False"
    if module is None or type(loader) is not module.DataLoader:
        return f"it is a {type(loader).__name__}, and not a DataLoader itself"
    try:
        import numpy  # noqa: F401
    except ImportError:
        return "NumPy, which the native way needs, is not installed"
    if not 1 <= feed.prefetch_depth <= _MOST_AHEAD:
        return f"prefetch_depth is {feed.prefetch_depth}"
    found = _why_not_rows(loader) or _tensors_in(loader.dataset, feed)
    if isinstance(found, str) or _seeds_as_known():
        return found
    return "this version of PyTorch draws its workers' seeds in another way"


def _why_not_rows(loader: Any) -> str:
    """Why a DataLoader's batches are more than rows of its dataset, whatever that is. Empty if they are not."""
    data = sys.modules["torch.utils.data"]
    if loader.batch_sampler is None:
        return "it does not batch"
    if loader.collate_fn is not data.default_collate or not _stacks_tensors(data):
        return f"it has a collate_fn of its own{_or_packs(loader)}"
    if loader.num_workers > 0 and not _only_seeds(loader.worker_init_fn):
        return "it has a worker_init_fn"
    if _batch_size(loader.batch_sampler) < 1:
        return f"its batch sampler is a {type(loader.batch_sampler).__name__}, which may do anything"
    return ""


def _tensors_in(dataset: Any, feed: Any) -> Tensors | str:
    data = sys.modules["torch.utils.data"]
    picked = None
    while type(dataset) is data.Subset:
        own = _whole_numbers(dataset.indices)
        if own is None:
            return "the indices of its Subset are not whole numbers"
        picked, dataset = own if picked is None else _picked(own, picked), dataset.dataset
        if picked is None:
            return _PICKS_TOO_MUCH
    if feed.pictures:
        pictures = picture_rows(dataset, feed._pictures)
        if isinstance(pictures, str):
            return pictures
        within = None if picked is None else _within(picked, len(pictures.targets))
        if picked is not None and within is None:
            return _PICKS_TOO_MUCH
        return Tensors(["image", "target"], [pictures.field, pictures.targets], None, within, pictures.options)
    rows = _rows_of(dataset, data)
    build: Callable[[list[Any]], Any] | None = None
    if isinstance(rows, Mapping):
        names, arrays, keys = [str(name) for name in rows], list(rows.values()), list(rows)
        build = lambda batch: dict(zip(keys, batch, strict=True))  # noqa: E731
    elif isinstance(rows, tuple | list):
        names, arrays = [f"field{i}" for i in range(len(rows))], list(rows)
    else:
        return f"its dataset is a {type(dataset).__name__}, which makes the samples itself{_or_pictures(dataset)}"
    if not arrays or len(set(names)) != len(names):
        return "its dataset has no tensors, or two of one name"
    for name, array in zip(names, arrays, strict=True):
        why = _why_not_read(array, arrays[0])
        if why:
            return f"{name} of its dataset {why}"
    if picked is not None:
        picked = _within(picked, len(arrays[0]))
        if picked is None:
            return _PICKS_TOO_MUCH
    return Tensors(names, arrays, build, picked)


def _or_packs(loader: Any) -> str:
    """What a Loader would give in place of a collator of transformers, if all columns are lists of whole numbers."""
    kind, data = type(loader.collate_fn), loader.dataset
    given = {
        "DataCollatorWithFlattening": 'pack={"input_ids": N}) gives packs of up to N tokens and their cu_seqlens',
        "DataCollatorWithPadding": f'{loader.batch_size}, pad="longest") gives such matrices and their lengths',
    }.get(kind.__name__)
    if given is None or not kind.__module__.startswith("transformers.") or not is_a("datasets", "Dataset", data):
        return ""
    columns = {field.name: str(field.type) for field in data.features.arrow_schema}
    is_of_lists = all(re.fullmatch(r"(large_)?list<\w+: u?int\d+>", column) for column in columns.values())
    return f"; penstock.Loader(dataset, {given}" if is_of_lists and "input_ids" in columns else ""


def _or_pictures(dataset: Any) -> str:
    """What pictures=True would give, if the dataset is an ImageFolder."""
    if type(dataset).__name__ != "ImageFolder":
        return ""
    folder = folder_of(dataset)
    if isinstance(folder, str):
        return f"; with pictures=True they would be decoded by penstock, but {folder}"
    return "; with pictures=True they are decoded by penstock, without worker processes"


_PICKS_TOO_MUCH = "its Subset picks samples that the dataset does not have"


def _picked(indices: Any, picks: Any) -> Any:
    """Those of the indices that `picks` are the numbers of. None if it picks more than there are."""
    picks = _within(picks, len(indices))
    return None if picks is None else indices[picks]


def most_in_a_batch(loader: Any, samples: int) -> int:
    """For how many samples a batch has room. Larger ones are made in the ordinary way."""
    sampler = getattr(loader.batch_sampler, "sampler", None)
    return max(1, min(_batch_size(loader.batch_sampler), len(sampler) if has_pieces(sampler) else samples))


def _whole_numbers(batch: Any) -> Any:
    """An array of int64. None if it is not certain that PyTorch takes each of these for the number of one row."""
    import numpy

    torch = sys.modules["torch"]
    if type(batch) is torch.Tensor:
        batch = batch.numpy() if batch.device.type == "cpu" and batch.dtype in (torch.int64, torch.int32) else None
    elif isinstance(batch, range):
        batch = numpy.arange(batch.start, batch.stop, batch.step)
    elif type(batch) in (list, tuple):
        whole = set(map(type, batch)) <= {int, numpy.int64}
        try:
            batch = numpy.array(batch, numpy.int64) if whole else None
        except OverflowError:
            return None
    if not isinstance(batch, numpy.ndarray) or batch.ndim != 1 or batch.dtype not in (numpy.int64, numpy.int32):
        return None
    return batch.astype(numpy.int64, copy=False)


def _within(indices: Any, count: int) -> Any:
    """The indices without negative ones, which count from the end. None if one is out of bounds."""
    import numpy

    if len(indices) == 0:
        return indices
    if int(indices.view(numpy.uint64).max()) < count:  # in which negative numbers are large
        return indices
    lowest = int(indices.min())
    if lowest < -count or int(indices.max()) >= count:
        return None
    return numpy.where(indices < 0, indices + count, indices) if lowest < 0 else indices


def _only_seeds(start: Any) -> bool:
    """True if a worker_init_fn cannot change samples that are rows of tensors."""
    start = start.func if isinstance(start, functools.partial) else start
    return start is None or (getattr(start, "__module__", ""), getattr(start, "__name__", "")) in _ONLY_SEEDS


def _rows_of(dataset: Any, data: Any) -> Any:
    """The tensors whose rows are the samples. None if the dataset makes its samples itself."""
    if "__getitems__" in getattr(dataset, "__dict__", ()):
        return None
    if type(dataset) is data.TensorDataset:
        return dataset.tensors
    # The class that makes the samples must be the one that declares them: one that inherits from it, or passes on
    # attributes, may change them.
    for kind in type(dataset).__mro__:
        if "__penstock_tensors__" in vars(kind):
            return dataset.__penstock_tensors__
        if {"__getitem__", "__getitems__"} & vars(kind).keys():
            return None
    return None


def _batch_size(batches: Any) -> int:
    """The most samples that a batch of these has; 0 for a batch sampler of an unknown kind."""
    if type(batches).__name__ == "BatchSamplerShard" and type(batches).__module__ == "accelerate.data_loader":
        batches = batches.batch_sampler
    if type(batches) is not sys.modules["torch.utils.data"].BatchSampler:
        return 0
    return batches.batch_size if isinstance(batches.batch_size, int) else 0


def _stacks_tensors(data: Any) -> bool:
    """True if nobody has registered another way to collate tensors, or lists and dicts of them."""
    collate = data._utils.collate
    known = collate.default_collate_fn_map
    tensors_stack = known.get(sys.modules["torch"].Tensor) is collate.collate_tensor_fn
    return tensors_stack and not any(isinstance(sample, kind) for sample in ((), {}) for kind in known)


def _why_not_read(array: Any, first: Any) -> str:
    """Why a batch of this tensor's rows is not simply a copy of their bytes. Empty if it is."""
    torch = sys.modules["torch"]
    if type(array) is not torch.Tensor:
        return f"is a {type(array).__name__}, not a plain tensor"
    if array.device.type != "cpu" or array.layout is not torch.strided:
        return f"is not a dense tensor of the host, but {array.layout} on {array.device}"
    if array.requires_grad or array.is_inference() or array.is_neg():
        return "requires gradients, or is a tensor of inference mode, or a negative view"
    if str(array.dtype).removeprefix("torch.") not in _INTEGERS | _FLOATS:
        return f"has the type {array.dtype}"
    if array.ndim == 0 or array.numel() == 0 or not array.is_contiguous():
        return "is empty, or its values do not lie side by side in order"
    return "" if len(array) == len(first) else f"has {len(array)} samples, and another one {len(first)}"


@functools.cache
def _seeds_as_known() -> bool:
    """True if a DataLoader's iterator takes as much from the random state as draw_seed does."""
    import torch
    from torch.utils.data import DataLoader

    theirs, ours = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    before = torch.get_rng_state()
    try:
        iter(DataLoader(range(1), generator=theirs))  # type: ignore[arg-type]
        draw_seed(torch, ours)
        left_alone = torch.equal(before, torch.get_rng_state())
    except Exception:  # such as a default device with other generators
        return False
    finally:
        torch.set_rng_state(before)
    return left_alone and torch.equal(theirs.get_state(), ours.get_state())
