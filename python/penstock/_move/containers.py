"""How containers that only Python knows are taken apart, and made again around other contents.

A container is made again without its constructor, which may convert its arguments, or take others. What lies in it is
found by identity: in its items, its fields, its attributes, and in plain containers there. So an array that is both an
item and an attribute stays one array, and a mapping that wraps a dict gets a dict of its own.
"""

from __future__ import annotations

import array
import collections
import collections.abc
import contextlib
import copyreg
import dataclasses
import functools
import inspect
import operator
import types
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from .._checks import attribute

# What has moved: by the id of an object, the object, which is kept for its id, and what takes its place.
Moved = dict[int, tuple[Any, Any]]

_MISSING = object()
_WHOLE = (str, bytes, bytearray, range, memoryview, array.array, collections.UserString)
_PLAIN = {dict, list, tuple, collections.OrderedDict, collections.defaultdict, collections.deque}
_FILLED = {object, dict, collections.OrderedDict, collections.defaultdict, list, collections.deque}


class _Kind(NamedTuple):
    """What is known of a type. `base`: the class whose C code makes its objects. `form`: how its items are listed; None
    if it has none. `as_stored`: no method of its own comes between its contents and what is stored."""

    base: Any
    form: Callable[[Any], Any] | None
    fields: tuple[str, ...] | None
    slots: tuple[str, ...]
    may_be_made: bool
    as_stored: bool


@functools.lru_cache(1024)
def _kind_of(kind: type) -> _Kind:
    base = next(
        base
        for base in kind.__mro__
        if base in _FILLED or isinstance(vars(base).get("__new__"), types.BuiltinMethodType)
    )
    fields = tuple(field.name for field in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None
    form: Callable[[Any], Any] | None = None
    if issubclass(kind, tuple):
        form, fields = _tuple_items, None
    elif issubclass(kind, collections.abc.Mapping):
        form = dict
    elif issubclass(kind, list):
        form = _list_items
    elif issubclass(kind, collections.abc.Sequence) and not issubclass(kind, _WHOLE):
        form = list
    slots = tuple(copyreg._slotnames(kind))  # type: ignore[attr-defined]
    own = set().union(*(vars(part) for part in kind.__mro__[: kind.__mro__.index(base)]))
    computed = own & {"__getattribute__", "__getitem__", "__iter__", "keys", "items"} or any(
        inspect.isdatadescriptor(inspect.getattr_static(kind, name, None)) for name in fields or ()
    )
    stored = form is None if base is object else fields is None and (base in _FILLED or base is tuple)
    as_stored = stored and not computed and not slots
    closes = hasattr(kind, "__del__") and fields is None and not hasattr(kind, "__setitem__")
    return _Kind(base, form, fields, slots, not closes, as_stored)


def _tuple_items(value: Any) -> list[Any]:
    return list(tuple.__iter__(value))


def _list_items(value: Any) -> list[Any]:
    return list(list.__iter__(value))


def contents_of(value: Any) -> Any:
    """What lies in a container, as a plain dict or list; None for anything else."""
    kind = _kind_of(type(value))
    items = None if kind.form is None else kind.form(value)
    if kind.fields is None:
        return items
    fields = {name: attribute(value, name, _MISSING) for name in kind.fields}
    fields = {name: field for name, field in fields.items() if field is not _MISSING}
    if items is None:
        return fields
    # Such as an output of transformers: its items are its fields.
    named = items if isinstance(items, dict) else dict(enumerate(items))
    known = set(map(id, named.values()))
    return named | {f".{name}": field for name, field in fields.items() if id(field) not in known}


def container_of(value: Any) -> Any:
    """(contents, begin, finish) of a container, as Tree in tree.hpp takes it; None for anything else."""
    contents = contents_of(value)
    if contents is None:
        return None
    container = _Container(value, contents)
    return contents, container.begin, container.finish


def like(value: Any, contents: Any) -> Any:
    """A container like this one, around other contents in the same places."""
    if type(value) in (list, tuple):
        return type(value)(contents)
    moved: Moved = {}
    container = _Container(value, contents_of(value))
    container.begin(moved)
    return container.finish(contents, moved)


def twin_of(value: Any) -> Any:
    """A copy that may be changed in place, whose contents are the same objects. The container itself if it cannot be
    made again."""
    if isinstance(value, tuple):
        return value
    contents = contents_of(value)
    inner = (*_items(contents), *(_own_dict(value) or {}).values())
    moved = {id(part): (part, _plain(part, part)) for part in inner if type(part) in (dict, list)}
    container = _Container(value, contents)
    container.begin(moved)
    new = container.make(moved)
    return value if new is None else new


class _Container:
    """A container that is made again. `contents`: as contents_of gives them."""

    def __init__(self, value: Any, contents: Any) -> None:
        self._value = value
        self._contents = contents
        self._kind = _kind_of(type(value))
        self._empty: Any = None

    def begin(self, moved: Moved) -> Any:
        """An empty object of the same type, which may be put into the contents before it is filled; None if it is made
        of its contents."""
        kind = self._kind
        if kind.base in _FILLED and kind.may_be_made:
            try:
                self._empty = kind.base.__new__(type(self._value))
            except TypeError:  # other C code makes its objects
                return None
            moved[id(self._value)] = self._value, self._empty
        return self._empty

    def finish(self, contents: Any, moved: Moved) -> Any:
        """The container with these contents. If its type does not let itself be made again, a plain dict or list."""
        _note(self._contents, contents, moved)
        new = self.make(moved)
        if new is None and self._kind.fields is not None:
            raise TypeError(
                f"a {type(self._value).__name__} cannot be made again around arrays that have moved. Teach penstock "
                "how: penstock.register_batch_type."
            )
        return contents if new is None else new

    def make(self, moved: Moved) -> Any:
        """The container with what has moved; None if it cannot be made again."""
        for make in (self._filled, self._reduced):
            try:
                new = make(moved)
                if new is not None and (self._kind.as_stored or _holds(new, self._contents, moved)):
                    moved[id(self._value)] = self._value, new
                    return new
            except Exception:  # code of the type's author may raise anything
                pass
            moved.pop(id(self._value), None)
        return None

    def _filled(self, moved: Moved) -> Any:
        value, base, new = self._value, self._kind.base, self._empty
        if self._kind.form is _tuple_items:
            new = base.__new__(type(value), [_replaced(item, moved) for item in self._contents])
        if new is not None:
            _fill_attributes(new, value, self._kind, moved)
            _fill(base, new, value, self._contents if self._kind.as_stored else None, moved)
        return new

    def _reduced(self, moved: Moved) -> Any:
        """As `copy` and `pickle` make it of its contents, such as a frozen mapping."""
        if type(self._value) is types.MappingProxyType:
            return types.MappingProxyType(_replaced(self._contents, moved))
        make, arguments, *rest = self._value.__reduce_ex__(4)
        if not self._kind.may_be_made or any(part is not None for part in rest):
            return None
        return make(*[_replaced(argument, moved) for argument in arguments])


def _fill(base: Any, new: Any, value: Any, contents: Any, moved: Moved) -> None:
    """Puts the items into a native container, past methods that convert or refuse them. `contents`: the items, as they
    were when the container was taken apart; None: those that it stores."""
    if base is collections.defaultdict:
        factory = vars(base)["default_factory"]
        factory.__set__(new, factory.__get__(value))
    if base is object:
        return
    if issubclass(base, dict):
        for key, item in base.items(value) if contents is None else contents.items():
            base.__setitem__(new, key, _replaced(item, moved))
    elif base is list:
        items = list.__iter__(value) if contents is None else contents
        list.extend(new, [_replaced(item, moved) for item in items])
    elif base is collections.deque:
        items = base.__iter__(value) if contents is None else contents
        base.__init__(new, [_replaced(item, moved) for item in items], value.maxlen)


def _fill_attributes(new: Any, value: Any, kind: _Kind, moved: Moved) -> None:
    own = _own_dict(value)
    if own is value:  # self.__dict__ = self
        object.__setattr__(new, "__dict__", new)
    elif own:
        _own_dict(new).update((name, _replaced(part, moved)) for name, part in own.items())
    for name, part in _slots(value, kind).items():
        object.__setattr__(new, name, _replaced(part, moved))


def _own_dict(value: Any) -> Any:
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None


def _slots(value: Any, kind: _Kind) -> dict[str, Any]:
    slots = {}
    for name in kind.slots:
        with contextlib.suppress(AttributeError):
            slots[name] = object.__getattribute__(value, name)
    return slots


def _items(contents: Any) -> Iterable[Any]:
    return contents.values() if isinstance(contents, dict) else contents


def _note(old: Any, new: Any, moved: Moved) -> None:
    """Notes what has moved, also in plain containers. What moved before, as a part of another one, stays as noted."""
    kind = type(old)
    inner = kind is dict or kind is list or kind is tuple
    for before, after in zip(_items(old), _items(new), strict=True) if inner and len(old) == len(new) else ():
        if before is not after and id(before) not in moved:
            moved[id(before)] = before, after
            if type(before) is type(after):
                _note(before, after, moved)


def _replaced(value: Any, moved: Moved) -> Any:
    """What has taken the place of `value`, or a plain container with what has moved; `value` if nothing has."""
    known = moved.get(id(value))
    if known is not None:
        return known[1]
    if type(value) not in _PLAIN:
        return value
    moved[id(value)] = value, value  # for as long as it is looked into: it may hold itself
    new = _replaced_contents(value, moved)
    if new is None:
        del moved[id(value)]
        return value
    moved[id(value)] = value, _plain(value, new)
    return moved[id(value)][1]


def _replaced_contents(value: Any, moved: Moved) -> Any:
    """The contents of a plain container, with what has moved; None if nothing has."""
    contents = contents_of(value)
    items = _items(contents)
    if moved.keys().isdisjoint(map(id, items)) and _PLAIN.isdisjoint(map(type, items)):
        return None
    new = [_replaced(item, moved) for item in items]
    if all(map(operator.is_, items, new)):
        return None
    return dict(zip(contents, new, strict=True)) if isinstance(contents, dict) else new


def _plain(value: Any, contents: Any) -> Any:
    """A plain container like this one."""
    if isinstance(value, collections.defaultdict):
        return type(value)(value.default_factory, contents)
    if isinstance(value, collections.deque):
        return type(value)(contents, value.maxlen)
    return type(value)(contents)


def _holds(new: Any, contents: Any, moved: Moved) -> bool:
    """True if a container that was made again has these contents, as they have moved."""
    found = contents_of(new)
    if isinstance(contents, dict):
        wanted: Any = {key: moved.get(id(item), (item, item))[1] for key, item in contents.items()}
    else:
        wanted = [moved.get(id(item), (item, item))[1] for item in contents]
    return _is(found, wanted)


def _is(one: Any, other: Any) -> bool:
    """True for the same object, and for containers and numbers that are made at each look and hold the same."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, int | float | complex | str | bytes):
        return one == other or one != one
    ours, theirs = contents_of(one), contents_of(other)
    if ours is None or len(ours) != len(theirs) or (isinstance(ours, dict) and ours.keys() != theirs.keys()):
        return False
    return all(map(_is, _items(ours), _items(theirs)))
