"""Random cases: `penstock.feed` beside the bare DataLoader, and `penstock.Loader` beside NumPy.

    differ.py [--seconds 60] [--seed 0] [--case JSON]

A seed gives the same cases. Each case is a dict of plain values, from which all else is made. If one fails, values are
made simpler for as long as it still fails. The smallest case that fails is printed as JSON, to be run again by --case.
"""

import argparse
import faulthandler
import json
import logging
import random
import re
import sys
import time
import warnings

import numpy as np
import torch
from torch.utils import data as D

import penstock

SHAPES = [(), (1,), (3,), (2, 3), (7,), (1, 1, 5), (64,), (33, 17), (1500,)]
LAYOUTS = ["packed", "strided", "transposed", "expanded", "odd"]
LOADER_TYPES = [*(f"{sign}int{bits}" for bits in (8, 16, 32, 64) for sign in ("", "u")), "bool"]
LOADER_TYPES += ["float16", "float32", "float64"]
FEED_TYPES = [*LOADER_TYPES, "bfloat16", "complex64"]


# ---- what both have


def bits_of(field, samples):
    """Random bytes of `samples` samples, as an array of uint8."""
    size = {"bool": 1, "bfloat16": 2}.get(field["type"]) or np.dtype(field["type"]).itemsize
    count = samples * int(np.prod(field["shape"], dtype=int)) * size
    values = np.random.default_rng(field["seed"]).integers(0, 256, count, np.uint8)
    return values & 1 if field["type"] == "bool" else values


def draw_field(draw, types, shapes=SHAPES):
    shape = list(draw.choice(shapes))
    return dict(type=draw.choice(types), shape=shape, layout=draw.choice(LAYOUTS), seed=draw.randrange(1000))


def canonical(value):
    """Something that is equal for equal types, shapes and bytes."""
    if isinstance(value, torch.Tensor):
        data = value.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8)
        return "tensor", str(value.dtype), tuple(value.shape), data.numpy().tobytes()
    if isinstance(value, dict):
        return "dict", [(key, canonical(each)) for key, each in value.items()]
    if isinstance(value, list | tuple):
        return type(value).__name__, [canonical(each) for each in value]
    return value


def first_difference(got, want):
    if got == want:
        return None
    k = next((k for k, (a, b) in enumerate(zip(got, want, strict=False)) if a != b), min(len(got), len(want)))
    got_there, want_there = (repr(each[k])[:300] if k < len(each) else "nothing" for each in (got, want))
    return f"event {k}: got {got_there}, and not {want_there}"


# ---- feed beside the bare DataLoader


class Rows(D.Dataset):
    """Samples that are rows of tensors, by name."""

    def __init__(self, tensors):
        self.tensors = tensors

    def __len__(self):
        return len(self.tensors[0])

    def __getitem__(self, i):
        return {f"f{k}": tensor[i] for k, tensor in enumerate(self.tensors)}


class DeclaredRows(Rows):
    @property
    def __penstock_tensors__(self):
        return {f"f{k}": tensor for k, tensor in enumerate(self.tensors)}


class MixedRows(Rows):
    def __getitem__(self, i):
        return *(tensor[i] for tensor in self.tensors), i, float(i), f"s{i}", np.float32(i)


class Listed(D.Sampler):
    """These indices. Raises after `good` of them."""

    def __init__(self, indices, good=None):
        self.indices, self.good = indices, good

    def __len__(self):
        return len(self.indices)

    def __iter__(self):
        for k, index in enumerate(self.indices):
            if k == self.good:
                raise ValueError(f"no index {k}")
            yield index


class Batches(D.Sampler):
    """Batches of several sizes."""

    def __init__(self, samples, seed):
        draw = random.Random(seed)
        self.batches = [[draw.randrange(samples) for _ in range(draw.randrange(1, 9))] for _ in range(7)]

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        return iter(self.batches)


def pair(samples):
    return [D.default_collate(samples), len(samples)]


def as_it_is(samples):
    return samples


DATASETS = dict(tensors=lambda ts: D.TensorDataset(*ts), declared=DeclaredRows, rows=Rows, mixed=MixedRows)
COLLATES = dict(default=None, pair=pair, as_it_is=as_it_is)
SAMPLERS = {
    "sequential": lambda case, data, draws: D.SequentialSampler(data),
    "random": lambda case, data, draws: D.RandomSampler(data, generator=draws),
    "replacement": lambda case, data, draws: D.RandomSampler(data, True, 2 * len(data) + 1, draws),
    "weighted": lambda case, data, draws: D.WeightedRandomSampler(
        np.arange(1, len(data) + 1) / len(data), len(data), case["order"] % 2 == 0, draws
    ),
    "subset_random": lambda case, data, draws: D.SubsetRandomSampler(indices_of(case, len(data)), draws),
    "distributed": lambda case, data, draws: D.DistributedSampler(data, 3, case["order"] % 3, seed=case["order"]),
    "listed": lambda case, data, draws: Listed(indices_of(case, len(data))),
    "out_of_range": lambda case, data, draws: Listed([*indices_of(case, len(data)), len(data), 0]),
    "raising": lambda case, data, draws: Listed(indices_of(case, len(data)), case["order"] % len(data)),
    "penstock": lambda case, data, draws: penstock.Sampler(data, shuffle=True, seed=case["order"]),
}
RESUMED = ["sequential", "random", "replacement", "distributed", "penstock"]
# These draw from PyTorch's state, or from a generator, as they go: who reads ahead has drawn more.
DRAW_AS_THEY_GO = ["weighted", "subset_random"]


def indices_of(case, samples):
    draw = random.Random(case["order"])
    return [draw.randrange(-samples, samples) for _ in range(draw.randrange(1, 2 * samples + 2))]


def draw_feed_case(draw):
    case = dict(kind="feed", samples=draw.choice([1, 2, 3, 5, 8, 31, 33, 64, 257, 1000]))
    case["fields"] = [
        draw_field(draw, FEED_TYPES, [*SHAPES, (0,), (3, 0, 2)]) for _ in range(draw.choice([1, 1, 2, 3, 5]))
    ]
    case["dataset"] = draw.choice(["tensors", "tensors", "tensors", *DATASETS])
    case["subset"] = draw.choice([None, None, "list", "numpy", "range", "nested"])
    case["sampler"] = draw.choice([*SAMPLERS, "batches"])
    case["order"] = draw.randrange(1000)
    case["generator"] = draw.random() < 0.3
    case["batch_size"] = draw.choice([1, 2, 3, 7, 16, 64, 1000])
    case["drop_last"] = draw.random() < 0.3
    case["collate"] = draw.choice(["default"] * 5 + list(COLLATES))
    # With workers, the bare loader asks a sampler for batches ahead, and raises before it gives the good ones.
    case["workers"] = draw.choice([0] * 16 + [1, 2]) if case["sampler"] != "raising" else 0
    case["persistent_workers"] = draw.random() < 0.5
    case["epochs"] = draw.choice([1, 2, 3])
    case["left_after"] = draw.choice([None, None, 0, 1, 4])
    case["written_between"] = draw.random() < 0.3
    case["resumed_after"] = draw.choice([None, None, 0, 1, 3])
    case["device"] = draw.choice(["host", "host:late=1"])
    case["prefetch_depth"] = draw.choice([0, 1, 2, 3, 7])
    case["native"] = draw.random() < 0.8
    return case


def tensor_of(field, samples):
    full = (samples, *field["shape"])
    dtype = getattr(torch, field["type"])
    if 0 in full:
        return torch.empty(full, dtype=dtype)
    data = torch.from_numpy(bits_of(field, samples)).view(dtype).reshape(full)
    if field["layout"] == "strided":
        return torch.cat([data, data])[::2]
    if field["layout"] == "transposed":
        return data.transpose(0, -1).contiguous().transpose(0, -1)
    if field["layout"] == "expanded":
        return data[:1].expand(full)
    if field["layout"] == "odd":
        return torch.cat([data.reshape(-1)[:1], data.reshape(-1)])[1:].reshape(full)
    return data


def loader_of(case):
    """The case's DataLoader, and its tensors: the same each time."""
    tensors = [tensor_of(field, case["samples"]) for field in case["fields"]]
    data = DATASETS[case["dataset"]](tensors)
    if case["subset"] is not None:
        indices = indices_of(case, len(data))
        if case["subset"] == "nested":
            data, indices = D.Subset(data, indices), range(0, len(indices), 2)
        data = D.Subset(
            data, {"numpy": np.array(indices), "range": range(0, len(data), 2)}.get(case["subset"], indices)
        )
    draws = torch.Generator().manual_seed(case["order"]) if case["generator"] else None
    options = dict(collate_fn=COLLATES[case["collate"]], num_workers=case["workers"], generator=draws)
    options["persistent_workers"] = case["persistent_workers"] and case["workers"] > 0
    if case["sampler"] == "batches":
        return D.DataLoader(data, batch_sampler=Batches(len(data), case["order"]), **options), tensors
    sampler = SAMPLERS[case["sampler"]](case, data, draws)
    return D.DataLoader(data, case["batch_size"], sampler=sampler, drop_last=case["drop_last"], **options), tensors


def message_of(error):
    """The last line. PyTorch's workers wrap it; a native feed has none."""
    return str(error).strip().split("\n")[-1].removeprefix(f"{type(error).__name__}: ")


def iterate(batches, most=None):
    """What happens in an epoch: batches, exceptions, the end. It is left after `most` batches."""
    seen, errors, iterator = [], 0, None
    while (most is None or len(seen) < most) and errors < 3:
        try:
            iterator = iter(batches) if iterator is None else iterator
            seen.append(canonical(next(iterator)))
        except StopIteration:
            return [*seen, "end"]
        except Exception as error:
            errors += 1
            seen.append((type(error).__name__, message_of(error)))
            if iterator is None:
                break
    return seen


def write(tensors):
    for tensor in tensors:
        tensor[0] = tensor[-1].clone()


def epochs_of(case, loader, batches, tensors):
    """What happens in the case's epochs. `batches`: the loader, or a feed of it."""
    torch.manual_seed(case["order"])
    seen = []
    can_be_left = case["workers"] == 0 and not case["generator"] and case["sampler"] not in DRAW_AS_THEY_GO
    for epoch in range(case["epochs"]):
        if case["sampler"] == "distributed":
            loader.sampler.set_epoch(epoch)
        most = case["left_after"] if can_be_left and epoch == 0 else None
        seen += iterate(batches, most)
        if most is None:
            seen.append(torch.get_rng_state().numpy().tobytes())
            if loader.generator is not None:
                seen.append(loader.generator.get_state().numpy().tobytes())
        if case["written_between"] and case["workers"] == 0:
            write(tensors)
    return seen


def feed_of(case, loader, **options):
    options.update(device=case["device"], prefetch_depth=case["prefetch_depth"], native=case["native"])
    return penstock.feed(loader, sharded=True, **options)


def check_feed(case):
    bare, tensors = loader_of(case)
    fed, fed_tensors = loader_of(case)
    want = epochs_of(case, bare, bare, tensors)
    problem = first_difference(epochs_of(case, fed, feed_of(case, fed), fed_tensors), want)
    return problem or (check_resume(case) if case["resumed_after"] is not None else None)


def check_resume(case):
    """An epoch that is left, and gone on with by a feed that is made anew, beside one that is not left."""
    if case["sampler"] not in RESUMED or case["generator"]:
        return None
    torch.manual_seed(case["order"])
    want = iterate(loader_of(case)[0])
    torch.manual_seed(case["order"])
    try:
        first = feed_of(case, loader_of(case)[0], resumable=True)
    except penstock.InvalidArgument:  # no state can be kept for it
        return None
    got = iterate(first, case["resumed_after"])
    state = first.state_dict()
    if got[-1:] != ["end"]:
        second = feed_of(case, loader_of(case)[0], resumable=True)
        second.load_state_dict(json.loads(json.dumps(state)))
        torch.manual_seed(case["order"] if not case["resumed_after"] else 12345)
        got += iterate(second)
    problem = first_difference(got, want)
    return problem and f"resumed: {problem}"


# ---- Loader beside NumPy


def targets_of(dtype):
    """The types that a field of this one may be delivered as."""
    if dtype.kind == "f":
        return {2: ["bfloat16", "float32"], 4: ["float16", "bfloat16"], 8: []}[dtype.itemsize]
    if dtype.kind == "b":
        return []
    wider = [each for each in LOADER_TYPES if "int" in each and each != dtype and np.can_cast(dtype, each)]
    return wider + (["float16", "bfloat16", "float32"] if dtype.itemsize <= 2 else [])


def draw_loader_case(draw):
    case = dict(kind="loader", samples=draw.choice([1, 2, 3, 7, 31, 64, 257, 1000]))
    case["fields"] = [draw_field(draw, LOADER_TYPES) for _ in range(draw.choice([1, 1, 2, 5, 12]))]
    for field in case["fields"]:
        field["to"] = draw.choice([None, *targets_of(np.dtype(field["type"]))])
        is_scaled = field["to"] in ("float32", "float16", "bfloat16") and draw.random() < 0.5
        field["scale"] = draw.choice([1 / 255, 3.0, 1e-3]) if is_scaled else None
        field["shift"] = draw.choice([None, -0.1, 123.456]) if is_scaled else None
    case["batch_size"] = draw.choice([1, 2, 3, 7, 16, 64, 1000])
    case["drop_last"] = draw.random() < 0.3
    case["shuffle"] = draw.random() < 0.6
    case["seed"] = draw.choice([0, 2**64 - 1, draw.randrange(2**64)])
    case["world_size"] = draw.choice([1, 1, 1, 2, 5])
    case["epochs"] = draw.choice([1, 2, 3])
    case["resumed_after"] = draw.choice([None, 0, 1, 3])
    case["device"] = draw.choice(["host", "host:late=1"])
    case["prefetch_depth"] = draw.choice([1, 2, 3, 8])
    case["residency"] = draw.choice(["none", "none", "all", "auto", 0.5, 0.01])
    return case


def array_of(field, samples):
    full = (samples, *field["shape"])
    data = bits_of(field, samples).view(field["type"]).reshape(full)
    if field["layout"] == "strided":
        return np.repeat(data, 2, axis=0)[::2]
    if field["layout"] == "transposed":
        return np.asfortranarray(data)
    if field["layout"] == "expanded":
        return np.broadcast_to(data[:1], full)
    if field["layout"] == "odd":
        return np.concatenate([data.reshape(-1)[:1], data.reshape(-1)])[1:].reshape(full)
    return data


def as_bfloat16(values):
    """The bits, rounded to the nearest, and to even between two."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    return np.where(np.isnan(values), 0x7FC0, (bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def converted(field, array):
    if field["scale"] is not None:
        array = array.astype(np.float32) * np.float32(field["scale"])
        if field["shift"] is not None:
            array = array + np.float32(field["shift"])
    return as_bfloat16(array) if field["to"] == "bfloat16" else array.astype(field["to"] or field["type"])


def same_numbers(got, want):
    """The same bytes; any NaN for a NaN."""
    got = got.view(torch.int16).numpy().view(np.uint16) if got.dtype == torch.bfloat16 else got.numpy()
    if got.shape != want.shape or got.tobytes() == want.tobytes():
        return got.shape == want.shape
    if want.dtype == np.uint16:  # perhaps of bfloat16
        got, want = ((each.view(np.uint16).astype(np.uint32) << 16).view(np.float32) for each in (got, want))
    return want.dtype.kind == "f" and np.array_equal(got, want, equal_nan=True)


def loader_for(case, data, rank):
    def by_name(option):
        return {f"f{k}": each[option] for k, each in enumerate(case["fields"]) if each[option] is not None} or None

    same = ("batch_size", "drop_last", "shuffle", "seed", "device", "prefetch_depth", "residency")
    options = {name: case[name] for name in same}
    for name in ("to", "scale", "shift"):
        options[name] = by_name(name)
    return penstock.Loader(data, rank=rank, world_size=case["world_size"], **options)


def check_loader(case):
    arrays = [array_of(field, case["samples"]) for field in case["fields"]]
    data = {f"f{k}": array for k, array in enumerate(arrays)}
    expected = [converted(field, array) for field, array in zip(case["fields"], arrays, strict=True)]
    for rank in range(case["world_size"]):
        order_options = {name: case[name] for name in ("shuffle", "seed", "drop_last", "world_size")}
        try:
            order = penstock.Sampler(case["samples"], rank=rank, **order_options)
            loader = loader_for(case, data, rank)
        except penstock.InvalidArgument as error:
            if case["drop_last"] and ("leave none" in str(error) or "larger than" in str(error)):
                return None  # not one full batch
            raise
        for epoch in range(case["epochs"]):
            order.set_epoch(epoch)
            if not case["drop_last"] and case["world_size"] == 1 and sorted(order) != list(range(case["samples"])):
                return f"epoch {epoch} has not each sample once"
            order.set_epoch(epoch)
            loader, problem = check_epoch(case, loader, data, rank, np.array(list(order), np.int64), expected)
            if problem:
                return f"rank {rank}, epoch {epoch}: {problem}"
        loader.close()
    return None


def check_epoch(case, loader, data, rank, order, expected):
    """Gives the loader that went on, and what was wrong."""
    size = case["batch_size"]
    full = len(order) // size * size
    batches = [order[at : at + size] for at in range(0, full if case["drop_last"] else len(order), size)]
    left, iterator = case["resumed_after"], iter(loader)
    for k, indices in enumerate(batches):
        if k == left:
            state = json.loads(json.dumps(loader.state_dict()))
            loader.close()
            loader = loader_for(case, data, rank)
            loader.load_state_dict(state)
            iterator = iter(loader)
        batch = next(iterator, None)
        if batch is None:
            return loader, f"{k} batches came, and not {len(batches)}"
        for f, values in enumerate(expected):
            if not same_numbers(batch[f"f{f}"], values[indices]):
                return loader, f"batch {k}, field {f}: got {batch[f'f{f}']!r:.300}, and not {values[indices]!r:.300}"
    return loader, None if next(iterator, None) is None else f"more than {len(batches)} batches came"


# ---- cases


def draw_case(seed, number):
    draw = random.Random(f"{seed} {number}")
    return draw_feed_case(draw) if number % 2 else draw_loader_case(draw)


def problem_of(case):
    """A sentence; None if all is well."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return check_feed(case) if case["kind"] == "feed" else check_loader(case)
        except Exception as error:
            return f"{type(error).__name__}: {error}"


# The simplest value of each option.
SIMPLEST = {
    **dict(samples=1, batch_size=1, epochs=1, workers=0, order=0, seed=0, world_size=1, prefetch_depth=1),
    **dict(type="uint8", shape=[], layout="packed", to=None, scale=None, shift=None),
    **dict(dataset="tensors", subset=None, sampler="sequential", collate="default", residency="none", device="host"),
    **dict(left_after=None, resumed_after=None, kind=None),
}


def simpler(case):
    """Cases that differ from this one in one value, which is simpler."""
    for name, value in case.items():
        simplest = SIMPLEST.get(name, False)
        if name == "fields":
            for k in range(len(value)):
                if len(value) > 1:
                    yield {**case, name: value[:k] + value[k + 1 :]}
                yield from ({**case, name: [*value[:k], each, *value[k + 1 :]]} for each in simpler(value[k]))
        elif name != "kind" and value != simplest:
            yield {**case, name: simplest}
            if type(value) is int and type(simplest) is int and value > simplest + 1:
                yield from ({**case, name: each} for each in ((value + simplest) // 2, value - 1))


def sort_of(problem):
    return problem and re.sub(r"[0-9]+", "", problem.split(":")[0])


def smallest(case, problem, deadline):
    """The simplest case that fails alike, as far as was tried."""
    found = True
    while found:
        found = False
        for each in simpler(case):
            if time.monotonic() < deadline and sort_of(problem_of(each)) == sort_of(problem):
                case, found = each, True
                break
    return case


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=json.loads)
    options = parser.parse_args()
    logging.getLogger("penstock").setLevel(logging.CRITICAL)
    if options.case:
        print(problem_of(options.case) or "good")
        return 0
    end, number = time.monotonic() + options.seconds, 0
    while time.monotonic() < end:
        faulthandler.dump_traceback_later(300, exit=True)
        case = draw_case(options.seed, number)
        if problem := problem_of(case):
            case = smallest(case, problem, time.monotonic() + 60)
            print(f"seed {options.seed}, case {number}: {problem_of(case)}\n--case '{json.dumps(case)}'")
            return 1
        number += 1
    print(f"seed {options.seed}: {number} cases are good")
    return 0


if __name__ == "__main__":
    sys.exit(main())
