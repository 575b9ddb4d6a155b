"""Questions to other people's loaders, samplers and trainers, and warnings to their users."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from ._checks import attribute
from ._errors import InvalidArgument, NotShardedWarning


def refuse_what_gives_no_batches(given: Any) -> None:
    """Raises TypeError for what a loader is made of, or made by: its items are not batches."""
    kind = type(given).__name__
    if isinstance(given, type):
        why = f"{given.__name__} is a class: write penstock.feed({given.__name__}(...))"
    elif isinstance(given, str | bytes | os.PathLike):
        name = os.fsdecode(given)
        why = f"{name!r} is the name of a file: write penstock.Loader({name!r}, batch_size=64)"
    elif isinstance(given, Mapping) or hasattr(given, "__arrow_c_stream__"):
        why = f"This {kind} is the data: write penstock.Loader(data, batch_size=64)"
    elif hasattr(given, "__iter__"):
        return
    elif hasattr(given, "__getitem__"):
        why = (
            f"This {kind} has no __iter__. It is a dataset, whose items are samples: write "
            "penstock.feed(DataLoader(dataset, batch_size=64)), with batch_size=None if its items are batches"
        )
    else:
        why = f"This {kind} is not iterable"
    raise TypeError(f"penstock.feed takes a loader, which is an iterable of batches. {why}.")


def is_prepared(loader: Any) -> bool:
    """True if Accelerate made this loader: such a loader wraps a DataLoader, and notes which batch is the last."""
    return hasattr(type(loader), "_update_state_dict") and attribute(loader, "base_dataloader") is not None


def device_of_prepared(loader: Any) -> Any:
    """The torch.device that Accelerate moves the batches of its loader to; None if it leaves them."""
    own = vars(loader)
    return own["device"] if "device" in own else attribute(own.get("state"), "device")


def keeps_state(loader: Any) -> bool:
    """True if `state_dict` and `load_state_dict` of this loader work. Does not call them: that could start workers."""
    if is_prepared(loader):
        return keeps_state(loader.base_dataloader)
    return all(callable(attribute(loader, name)) for name in ("state_dict", "load_state_dict"))


def epoch_taker(loader: Any) -> Any:
    """The first of the loader, its samplers and its dataset that has `set_epoch`; None if none has."""
    sampler, batch_sampler = attribute(loader, "sampler"), attribute(loader, "batch_sampler")
    candidates = (
        loader,
        *(sampler, attribute(sampler, "sampler"), batch_sampler, attribute(batch_sampler, "sampler")),
        attribute(loader, "dataset"),
    )
    return next((owner for owner in candidates if callable(attribute(owner, "set_epoch"))), None)


def refuse_to_be_rebuilt(caller: FrameType) -> None:
    """Raises InvalidArgument if `skip_first_batches` is about to make a plain DataLoader of a feed's attributes."""
    if caller.f_code.co_name == "skip_first_batches" and "accelerate" in caller.f_globals.get("__name__", ""):
        raise InvalidArgument(
            "skip_first_batches would turn this feed into a plain DataLoader whose batches stay on the host. Write "
            "penstock.feed(skip_first_batches(loader, n)), or feed the loader that Accelerate prepared."
        )


def processes() -> int:
    """The number of processes that torch.distributed joins; 1 if it is not in use."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 1
    return distributed.get_world_size()


def processes_of_host() -> int:
    """The number of processes that torchrun started on this machine; 1 if it did not start this one."""
    count = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, int(count)) if count.isdecimal() else 1


def processes_on_these_processors() -> int:
    """The number of processes of this host that use the processors of this one. Those that torchrun has bound to
    processors of their own, fewer than it has itself, use only these."""
    own = len(os.sched_getaffinity(0))
    try:
        of_all = len(os.sched_getaffinity(os.getppid()))
    except OSError:  # the parent has ended
        of_all = own
    return max(1, round(processes_of_host() * min(1.0, own / of_all)))


def warn_unless_sharded(loader: Any, what: str) -> None:
    """Warns once in each process if several train together and nothing shards the samples."""
    count = processes()
    if count == 1 or is_sharded(loader):
        return
    if _accelerate() is not None:
        advice = "penstock.feed(accelerator.prepare(loader)), which shards"
    else:
        advice = "DataLoader(..., sampler=DistributedSampler(dataset)) in it, and call set_epoch(epoch) for each epoch"
    if what == "penstock.Loader":
        advice = "penstock.Loader(..., distributed=True)"
    warnings.warn(
        f"{what} gives all samples to each of the {count} processes that train together: nothing shards them. Write "
        f"{advice}. If they are sharded in another way, or each process should see all of them, pass "
        f"{'rank=0, world_size=1' if what == 'penstock.Loader' else 'sharded=True'}.",
        NotShardedWarning,
        stacklevel=outside(),
    )


def is_sharded(loader: Any) -> bool:
    """True if a sampler, a dataset or a stage of this loader gives each process a share of the samples."""
    return is_prepared(loader) or any(map(_shards, _parts(loader, 0, set())))


def _parts(owner: Any, depth: int, seen: set[int]) -> Iterator[Any]:
    if owner is None or id(owner) in seen or depth > 6:
        return
    seen.add(id(owner))
    yield owner
    for name in ("batch_sampler", "sampler", "dataset", "base_dataloader", "loader"):
        yield from _parts(attribute(owner, name), depth + 1, seen)
    stages = attribute(owner, "pipeline")  # WebDataset
    for stage in stages if isinstance(stages, list) else ():
        yield from _parts(stage, depth + 1, seen)


def _shards(part: Any) -> bool:
    # DistributedSampler and those like it; Accelerate's and transformers' shards; Hugging Face's iterable sets.
    counts = (attribute(part, name) for name in ("num_replicas", "num_processes"))
    if any(isinstance(count, int) and count > 1 for count in counts):
        return True
    return attribute(part, "__name__") == "split_by_node" or attribute(part, "_distributed") not in (None, False)


def _accelerate() -> Any:
    """Accelerate's GradientState, if an Accelerator was made in this process."""
    module = sys.modules.get("accelerate.state")
    return module.GradientState() if module is not None and module.GradientState._shared_state else None


def warn_of_lost_accumulation(loader: Any, what: str) -> None:
    """Warns if Accelerate accumulates gradients and cannot see which batch of this loader is the last."""
    state = _accelerate()
    if state is None or is_prepared(loader) or state.num_steps in (None, 1) or state.in_dataloader:
        return
    advice = (
        "Write penstock.feed(accelerator.prepare(loader))."
        if what == "penstock.feed"
        else "Choose a number of batches that gradient_accumulation_steps divides, or drop the rest."
    )
    warnings.warn(
        f"Accelerate accumulates gradients over {state.num_steps} batches, and does not see the end of this {what}: "
        f"the last optimizer step of an epoch may be lost. {advice}",
        stacklevel=outside(),
    )


def outside() -> int:
    """The stack level of the nearest caller outside this package, for `warnings.warn` in the calling function."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "penstock":
        level, frame = level + 1, frame.f_back
    return level
