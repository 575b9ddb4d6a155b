"""Containers of a batch come out as what they were: the type, the attributes, what was one object, and the source."""

import array
import collections
import collections.abc
import dataclasses
import itertools
import types
from typing import Any

import numpy as np
import pytest
import torch

import penstock
from support import same


class Wrapping(collections.abc.MutableMapping):
    """A mapping around a dict, which `copy.copy` shares."""

    def __init__(self, **data):
        self.data = data

    def __getitem__(self, key):
        return self.data[key]

    def __setitem__(self, key, value):
        self.data[key] = value

    def __delitem__(self, key):
        del self.data[key]

    def __iter__(self):
        return iter(self.data)

    def __len__(self):
        return len(self.data)


class Strict(dict):
    """A dict whose attributes are its items. It knows no other name."""

    __getattr__ = dict.__getitem__


class Selves(dict):
    """A dict whose attributes are its items: they are one dict."""

    def __init__(self, *items, **named):
        super().__init__(*items, **named)
        self.__dict__ = self


class Both(dict):
    """A dict with an attribute for each item."""

    def __init__(self, **named):
        super().__init__(**named)
        for name, value in named.items():
            setattr(self, name, value)


@dataclasses.dataclass
class Output(collections.OrderedDict):
    """As the outputs of transformers: a dataclass whose fields are items too."""

    loss: Any = None
    states: Any = None

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if getattr(self, field.name) is not None:
                self[field.name] = getattr(self, field.name)


class Pair(tuple):
    """A tuple with a constructor of its own."""

    def __new__(cls, *items):
        return super().__new__(cls, items)


class Doubled(collections.namedtuple("Doubled", "value unit")):
    """A named tuple whose constructor converts, and takes a name."""

    def __new__(cls, value, *, unit):
        return super().__new__(cls, value * 2, unit)


class Scaled(dict):
    """A dict that converts what it is given."""

    def __setitem__(self, key, value):
        super().__setitem__(key, value * 2)


class Frozen(dict):
    def __setitem__(self, key, value):
        raise TypeError("frozen")

    __delitem__ = __setattr__ = __setitem__


class Counting(list):
    def __init__(self, first, *rest):
        super().__init__([first, *rest])


class Factory(collections.defaultdict):
    def __init__(self):
        super().__init__(list)


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    x: Any
    name: str = "mine"


@dataclasses.dataclass(eq=False)
class Node:
    value: Any
    parent: Any = None
    children: list = dataclasses.field(default_factory=list)


def with_name(value):
    object.__setattr__(value, "name", "scan 1")
    return value


def factory_of(tensor):
    made = Factory()
    made["x"] = tensor
    return made


KINDS = {
    "wraps a dict": lambda x: Wrapping(x=x),
    "strict": lambda x: Strict(x=x),
    "selves": lambda x: Selves(x=x),
    "both": lambda x: Both(x=x),
    "frozen dict": lambda x: Frozen(x=x),
    "ordered": lambda x: collections.OrderedDict(x=x),
    "default": lambda x: collections.defaultdict(list, x=x),
    "own default": factory_of,
    "chain": lambda x: collections.ChainMap({"y": 1}, {"x": x}),
    "user dict": lambda x: collections.UserDict(x=x),
    "proxy": lambda x: types.MappingProxyType({"x": x}),
    "slotted": Slotted,
}
SEQUENCES = {
    "pair": lambda x: Pair(x, 1),
    "single": Pair,
    "counting": lambda x: Counting(x, 1),
    "user list": lambda x: collections.UserList([x]),
    "deque": lambda x: collections.deque([x], maxlen=3),
    "sorted": lambda x: pytest.importorskip("sortedcontainers").SortedKeyList([x], key=len),
}


def content(container):
    if isinstance(container, collections.abc.Sequence):
        return container[0]
    return container["x"] if isinstance(container, collections.abc.Mapping) else container.x


@pytest.mark.parametrize("make", [*KINDS.values(), *SEQUENCES.values()], ids=[*KINDS, *SEQUENCES])
def test_a_container_is_what_it_was_and_the_source_keeps_its_own(device, make):
    x = torch.arange(3.0)
    source = make(x)
    sent = penstock.to_device(source, device)
    assert type(sent) is type(source) and content(source) is x
    assert content(sent) is not x and same(content(sent), x)
    back = penstock.to_host(sent)
    assert type(back) is type(source) and same(content(back), x)
    content(sent).add_(1)
    assert same(x, torch.arange(3.0))


def test_batches_that_are_kept_stay_as_they_are_from_epoch_to_epoch(device):
    kept = [Wrapping(x=torch.full((2,), float(i))) for i in range(3)]
    fed = penstock.feed(kept, device)
    for _ in range(3):
        values = []
        for batch in fed:
            values.append(batch["x"].tolist())
            batch["x"].add_(10)
        assert values == [[0, 0], [1, 1], [2, 2]]


@pytest.mark.parametrize("kind", [Selves, Both, Output])
def test_an_item_that_is_an_attribute_stays_one_tensor(kind, device):
    x = torch.ones(3)
    source = kind(states=(x, [x])) if kind is Output else kind(x=x, states=(x, [x]))
    sent = penstock.to_device(source, device)
    assert sent.states is sent["states"] and source.states is source["states"] and source.states[0] is x
    assert sent.states[0] is not x and same(sent.states, (x, [x]))
    if kind is not Output:
        assert sent.x is sent["x"] and sent.x is not x and same(sent.x, x)
    if kind is Selves:
        sent.new = 1
        assert sent["new"] == 1 and "new" not in source


def test_fields_that_are_no_items_move_too(device):
    output = Output(loss=torch.ones(1))
    output.states = torch.zeros(2)
    sent = penstock.to_device(output, device)
    assert list(sent) == ["loss"] and sent.loss is sent["loss"]
    assert sent.states is not output.states and same(sent.states, torch.zeros(2))


def test_what_a_mapping_holds_twice_is_found_in_its_attributes(device):
    x, y = torch.ones(2), torch.zeros(2)
    source = Wrapping(x=x, y=[y])
    source.latest, source.all, source.other = y, {"both": [x, (y,)]}, [1, 2]
    sent = penstock.to_device(source, device)
    assert sent.latest is sent["y"][0] and sent.all["both"][0] is sent["x"] and sent.all["both"][1][0] is sent.latest
    assert sent.other is source.other and source.all["both"][0] is x


def test_constructors_are_not_called_again(device):
    doubled = Doubled(torch.ones(2), unit="m")
    sent = penstock.to_device(doubled, device)
    assert type(sent) is Doubled and sent.unit == "m" and same(sent.value, torch.full((2,), 2.0))
    scaled = Scaled()
    scaled["x"] = torch.ones(2)
    assert same(penstock.to_device(scaled, device)["x"], torch.full((2,), 2.0))
    (lists,) = penstock.to_device(Pair([torch.ones(1)]), device)
    assert type(lists) is list and same(lists, [torch.ones(1)])
    result = penstock.to_device(torch.max(torch.ones(2, 3), 0), device)
    assert type(result) is torch.return_types.max and same(result.values, torch.ones(3))


@pytest.mark.parametrize("make", [Pair, Wrapping, Strict, Counting, Slotted, Node])
def test_attributes_are_kept(make, device):
    if make is Slotted:
        source = Slotted(torch.ones(1), "scan 1")
    else:
        source = with_name(make(x=torch.ones(1)) if make in (Wrapping, Strict) else make(torch.ones(1)))
    sent = penstock.to_device(source, device)
    assert sent.name == "scan 1" and sent is not source


@pytest.mark.parametrize("kind", [Pair, Counting])
def test_a_loader_gives_the_structure_of_its_data(kind):
    data = with_name(kind(np.arange(6).reshape(3, 2), np.arange(3)))
    loader = penstock.Loader(data, batch_size=2, device="host", shuffle=False)
    batch = next(iter(loader))
    assert type(batch) is kind and batch.name == "scan 1" and len(batch) == 2
    assert np.asarray(batch[1]).tolist() == [0, 1]
    assert type(loader.dataset[1]) is kind and loader.dataset[1][1] == 1


def test_a_loader_gives_named_tuples_that_convert():
    loader = penstock.Loader(Doubled(np.arange(4), unit=np.arange(4)), batch_size=4, device="host", shuffle=False)
    (batch,) = loader
    assert type(batch) is Doubled and np.asarray(batch.value).tolist() == [0, 2, 4, 6]


def test_a_loader_asks_its_data_for_attributes():
    (batch,) = penstock.Loader(Strict(x=np.arange(3)), batch_size=3, device="host", shuffle=False)
    assert np.asarray(batch["x"]).tolist() == [0, 1, 2]


class Unchangeable(collections.abc.MutableSequence):
    """As a SortedList."""

    def __init__(self, items):
        self.items = list(items)

    def __getitem__(self, index):
        return self.items[index]

    def __len__(self):
        return len(self.items)

    def __setitem__(self, index, value):
        raise NotImplementedError

    __delitem__ = insert = __copy__ = __reduce_ex__ = __setitem__


UNMOVED = {
    "sorted": Unchangeable([1, [2, "text"]]),
    "frozen": Frozen(a=1, b={"c": [None]}),
    "proxy": types.MappingProxyType({"a": 1}),
    "wraps a dict": Wrapping(a=1),
    "text": collections.UserString("abc"),
    "numbers": array.array("d", [1.0, 2.0]),
    "pair": Pair(1, [2]),
    "size": torch.Size([1, 2]),
    "slotted": Slotted(1),
    "kind": torch.Tensor,
}


@pytest.mark.parametrize("value", UNMOVED.values(), ids=UNMOVED)
def test_a_container_in_which_nothing_moves_is_the_same_object(value, device):
    assert penstock.to_device({"a": [value]}, device)["a"][0] is value
    assert penstock.to_host(value) is value
    sent = penstock.to_device(Wrapping(x=torch.ones(1), still=value), device)
    assert sent["still"] is value


def test_what_is_on_the_device_leaves_its_container_alone(device):
    there = penstock.to_device(Wrapping(x=torch.ones(2)), device)
    assert penstock.to_device(there, device) is there


def tree_of(x):
    root = Node(x, children=[])
    root.children += [Node(None, root), Node(torch.zeros(1), root, [])]
    return root


def test_a_tree_with_links_to_parents(device):
    root = tree_of(torch.ones(2))
    leaf, other = root.children
    new_leaf, new = penstock.to_device({"leaf": leaf, "root": root}, device).values()
    assert new is not root and new.children[0] is new_leaf and new_leaf.parent is new
    assert new.children[1].parent is new and same(new.children[1].value, torch.zeros(1))
    assert same(new.value, torch.ones(2)) and root.children == [leaf, other] and leaf.parent is root


def test_a_tree_with_links_to_parents_in_which_nothing_moves(device):
    root = tree_of(None)
    root.children.pop()
    assert penstock.to_device([root], device)[0] is root


def test_an_array_at_the_end_of_a_chain_moves_all_that_lead_to_it(device):
    nodes = [Node(None) for _ in range(20)]
    for node, after in itertools.pairwise(nodes):
        node.parent, after.children = after, [node]
    nodes[0].value = torch.ones(1)
    last = penstock.to_device(nodes[-1], device)
    assert last is not nodes[-1] and last.children[0].parent is last
    nodes[0].value, nodes[-1].value = None, torch.ones(1)
    first = penstock.to_device(nodes[0], device)
    assert first is not nodes[0] and first.parent.children[0] is first


def test_a_container_that_is_held_twice_is_one_afterwards(device):
    shared = Wrapping(x=torch.ones(1))
    sent = penstock.to_device([shared, {"again": shared}], device)
    assert sent[0] is sent[1]["again"] and sent[0] is not shared


def test_a_tuple_that_holds_itself():
    items = []
    ring = Pair(items, torch.ones(1))
    items.append(ring)
    with pytest.raises(RecursionError, match="holds itself"):
        penstock.to_device(ring, "host")


class Emptying:
    """Empties its container when it is moved."""

    def to(self, device):
        self.container.clear()
        return 1


@pytest.mark.parametrize("kind", [collections.OrderedDict, collections.deque, Counting])
def test_containers_that_are_emptied_while_they_are_walked(kind, device):
    first, x = Emptying(), torch.ones(2)
    first.container = kind(a=first, x=x) if kind is collections.OrderedDict else kind([first, x])
    if kind is Counting:
        first.container[:] = [first, x]
    sent = penstock.to_device(first.container, device)
    values = list(sent.values() if kind is collections.OrderedDict else sent)
    assert values[0] == 1 and same(values[1], x) and len(first.container) == 0


class Computed(collections.abc.Mapping):
    """A mapping that makes its items when they are asked for."""

    def __getitem__(self, key):
        return torch.full((2,), float(len(key)))

    def __iter__(self):
        return iter(("a", "bc"))

    def __len__(self):
        return 2


class Closing(Computed):
    """As NumPy's NpzFile: a copy that is dropped would close the file of both."""

    closed = 0

    def __del__(self):
        Closing.closed += 1


def test_a_mapping_that_cannot_be_made_again_becomes_a_dict(device):
    sent = penstock.to_device(Computed(), device)
    assert type(sent) is dict and same(sent, {"a": torch.ones(2), "bc": torch.full((2,), 2.0)})
    closing, before = Closing(), Closing.closed
    assert type(penstock.to_device(closing, device)) is dict and Closing.closed == before


def test_a_mapping_that_makes_anew_what_it_holds(device):
    class Nested(collections.abc.Mapping):
        def __init__(self, data):
            self._data = data

        def __getitem__(self, key):
            value = self._data[key]
            return Nested(value) if isinstance(value, dict) else value

        def __iter__(self):
            return iter(self._data)

        def __len__(self):
            return len(self._data)

    source = Nested({"a": {"b": torch.ones(1)}, "n": 2**70, "t": 0.5})
    sent = penstock.to_device(source, device)
    assert type(sent) is Nested and sent["a"]["b"] is not source["a"]["b"] and same(sent["a"]["b"], torch.ones(1))


def test_a_dataclass_that_cannot_be_made_again_is_named():
    @dataclasses.dataclass
    class Fresh:
        x: Any

        def __getattribute__(self, name):
            return torch.ones(1) if name == "x" else super().__getattribute__(name)

    with pytest.raises(TypeError, match=r"Fresh cannot be made again.*register_batch_type"):
        penstock.to_device(Fresh(1), "host")


class OwnDict(dict):
    """A container that moves itself in place, as many recipes do."""

    def to(self, device):
        for key, value in self.items():
            self[key] = value.to(device).half()
        return self


class OwnList(list):
    def to(self, device):
        return OwnList(value.to(device).half() for value in self)


class OwnUser(collections.UserDict):
    """As BatchEncoding."""

    def to(self, device):
        self.data = {key: value.to(device).half() for key, value in self.data.items()}
        return self


class OwnWrapping(Wrapping):
    def to(self, device):
        for key in self:
            self[key] = self[key].to(device).half()


class OwnPair(Pair):
    def to(self, device):
        return OwnPair(*[value.to(device).half() for value in self])


@dataclasses.dataclass
class OwnData:
    x: Any

    def to(self, device):
        self.x = self.x.to(device).half()
        return self


@pytest.mark.parametrize(
    "make",
    [
        lambda x: OwnDict(x=x),
        lambda x: OwnList([x]),
        lambda x: OwnUser(x=x),
        lambda x: OwnWrapping(x=x),
        OwnPair,
        OwnData,
    ],
)
def test_an_own_to_of_a_container_is_called_and_the_source_stays(make, device):
    x = torch.ones(2)
    source = make(x)
    for _ in range(2):  # a batch that is kept, in its second epoch
        (sent,) = penstock.feed([source], device)
        assert type(sent) is type(source)
        assert content(sent).dtype is torch.float16 and content(source) is x


def test_out_takes_containers_apart_that_could_move_themselves(device):
    out = {"x": torch.zeros(2)}
    penstock.to_host(OwnUser(x=penstock.to_device(torch.ones(2), device)), out=out)
    assert out["x"].tolist() == [1, 1]


class Loud:
    """Fails with an error of its own if it is asked for what it does not have."""

    def __getattr__(self, name):
        raise KeyError(name)


def test_asking_for_an_attribute_may_raise_anything(device):
    loud = Loud()
    strict = Strict(x=torch.ones(1), loud=loud)
    (sent,) = penstock.feed([strict], device)
    assert type(sent) is Strict and sent.loud is loud and same(sent.x, torch.ones(1))
    out = Strict(x=torch.zeros(1))
    penstock.to_host(Strict(x=sent.x), out=out)
    assert same(out.x, torch.ones(1))


def test_a_container_of_another_type_receives_the_bytes(device):
    out = Wrapping(x=torch.zeros(2), y=[1])
    got = penstock.to_host(Wrapping(x=penstock.to_device(torch.ones(2), device), y=[2]), out=out)
    assert got is out and out["x"].tolist() == [1, 1]
    node = Node(penstock.to_device(torch.ones(1), device))
    node.parent = node
    into = Node(torch.zeros(1), 0)
    assert penstock.to_host(node, out=into).value.tolist() == [1]


def test_copies_of_containers_are_not_deep():
    class Guarded:
        def __deepcopy__(self, memo):
            raise AssertionError

        __copy__ = __reduce_ex__ = __deepcopy__

    source = Wrapping(x=torch.ones(1))
    source.guarded = Guarded()
    assert penstock.to_device(source, "host").guarded is source.guarded


def test_containers_that_other_libraries_freeze(device):
    frozendict = pytest.importorskip("frozendict").frozendict
    pyrsistent = pytest.importorskip("pyrsistent")
    for make in (frozendict, pyrsistent.pmap):
        source = make({"x": torch.ones(2), "n": 1})
        sent = penstock.to_device(source, device)
        assert type(sent) is type(source) and same(sent["x"], torch.ones(2)) and sent["x"] is not source["x"]
        still = make({"n": 1})
        assert penstock.to_device(still, device) is still
