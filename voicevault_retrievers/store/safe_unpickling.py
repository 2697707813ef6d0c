"""Pickles read as data: no name is imported, and no call is executed.

A pickle is a program for a stack machine. This module is such a machine, over the parser of the standard library
(`pickletools.genops`), that knows the few names needed by a rank-bm25 index, its chunks and numpy's arrays; each stands
for a plain value made here. Every other name, and every instruction that could lead to one (persistent ids, the
extension registry, out-of-band buffers, protocol 0's INST and OBJ), is refused, and the error names it. The exception
is the class of an application's own chunks, which is in no standard module: an object of such a class is read as its
fields, and the class name is refused anywhere else. Declared sizes allocate nothing, copies count against `MAX_STEPS`,
and only text and small numbers are hashed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from pickletools import genops
from typing import Any

import numpy as np

from voicevault_retrievers.errors import IncompatibleIndexError, IndexDamagedError

MAX_BYTES = 512 << 20
MAX_STEPS = 50_000_000
"""The most instructions and copied items: enough for half a million chunks of 40 different terms."""

MAX_DEPTH = 100
"""The most marks open at a time."""

RANKERS = frozenset({"rank_bm25.BM25Okapi", "rank_bm25.BM25L", "rank_bm25.BM25Plus"})
DOCUMENTS = frozenset(
    f"langchain{module}.Document"
    for module in ("_core.documents.base", ".schema.document", ".schema", ".docstore.document")
)
_CLASSES = RANKERS | DOCUMENTS
_ARGUMENTS = frozenset({"numpy.ndarray", *(f"builtins.{name}" for name in ("object", "list", "dict", "int", "float"))})
"""Names that are passed to calls, and never called."""

_MODULES = {
    "__builtin__": "builtins",
    "copy_reg": "copyreg",
    "numpy.core.multiarray": "numpy._core.multiarray",
    "numpy.core.numeric": "numpy._core.numeric",
}
_NO_CHUNKS = sys.stdlib_module_names | {"numpy"}
"""Packages whose classes cannot be those of chunks."""

_REMEDY = "if the index is your own, restore it from a copy, or index the documents again"
_DTYPE = re.compile(r"b1|[iu][1248]|f[248]|U[1-9]\d{0,4}")
_LARGEST_KEY = 1 << 60


@dataclass(eq=False)
class UnpickledObject:
    """An object of an admitted class: the name of the class, and the object's state."""

    name: str
    state: dict[str, Any] = field(default_factory=dict)


def load(path: Path) -> Any:
    """The value in a pickle, of any protocol: arrays are lists, sets hold text, objects are `UnpickledObject`.

    Raises IncompatibleIndexError for a name or an instruction that no index needs and for a pickle over the limits,
    IndexDamagedError for one that is cut short or no pickle.
    """
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise IncompatibleIndexError(f"{path} has {size >> 20} MiB, more than {MAX_BYTES >> 20}: {_REMEDY}")
    try:
        return _Machine().run(path.read_bytes())
    except _RefusedError as error:
        what = ascii(str(error)[:200])[1:-1]
        raise IncompatibleIndexError(
            f"{path} holds {what}, which no rank-bm25 index needs: refused, and nothing in it was run; {_REMEDY}"
        ) from error
    except (ValueError, TypeError, LookupError, OverflowError, MemoryError, SystemError) as error:
        # SystemError is numpy's, for characters beyond Unicode.
        reason = str(error)[:200] or type(error).__name__
        raise IndexDamagedError(f"{path} is cut short, or no pickle of an index ({reason}): {_REMEDY}") from error


class _RefusedError(Exception):
    """The pickle holds something that is not allowed."""


@dataclass(frozen=True)
class _Name:
    dotted: str


class _Array(list[Any]):
    """An array's values; a list that BUILD fills."""


class _Dtype:
    def __init__(self, code: str, align: bool = False, copy: bool = True) -> None:
        if not _DTYPE.fullmatch(code):
            raise _RefusedError(f"numpy.dtype {code}")
        self.code = code
        self.order = "="

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.order + self.code)

    def build(self, _: Any, order: str, *parts: Any) -> None:
        if order not in ("<", ">", "|", "=") or any(part is not None for part in parts[:3]):
            raise TypeError("a dtype with parts")
        self.order = order


class _Machine:
    """The state of the stack machine: the stack above the last mark, the stacks below open marks, and the memo."""

    def __init__(self) -> None:
        self.left = MAX_STEPS
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[Any, Any] = {}
        self.foreign: dict[str, str] = {}
        """Class names of an application, until an object of the class has got its fields."""

    def run(self, data: bytes) -> Any:
        try:
            for opcode, argument, _ in genops(data):
                self.spend(1)
                operation = _OPERATIONS.get(opcode.name)
                if operation is None:
                    named = "" if argument is None else str(argument).replace(" ", ".")  # INST gives module and name
                    raise _RefusedError(f"{opcode.name} {named}".rstrip())
                operation(self, argument)
        finally:
            for name in self.foreign.values():  # even after another error
                raise _RefusedError(name)
        return self.stack.pop()

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise _RefusedError(f"more than {MAX_STEPS} instructions and items")

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def mark(self) -> None:
        if len(self.marks) == MAX_DEPTH:
            raise _RefusedError(f"values nested deeper than {MAX_DEPTH}")
        self.marks.append(self.stack)
        self.stack = []

    def items(self) -> list[Any]:
        """The items above the last mark; removes them and the mark."""
        items, self.stack = self.stack, self.marks.pop()
        return items

    def last(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise IndexError("an instruction without its values")
        items = self.stack[-count:]
        del self.stack[-count:]
        return items

    def pop(self) -> None:
        if self.stack:
            self.stack.pop()
        else:
            self.items()

    def put(self, place: int | None) -> None:
        self.memo[len(self.memo) if place is None else _key(place)] = self.stack[-1]

    def extend(self, items: list[Any]) -> None:
        _exactly(list, self.stack[-1]).extend(items)

    def update(self, kind: type[Any], items: Any) -> None:
        _exactly(kind, self.stack[-1]).update(items)

    def name(self, module: str, name: str) -> None:
        dotted = f"{_MODULES.get(module, module)}.{name}"
        if dotted not in _ADMITTED:
            if dotted.partition(".")[0] in _NO_CHUNKS:
                raise _RefusedError(f"{module}.{name}")
            self.foreign[dotted] = f"{module}.{name}"
        self.push(_Name(dotted))

    def new(self) -> None:
        cls, arguments = self.last(2)
        if arguments != ():
            raise _RefusedError(f"an object of {_exactly(_Name, cls).dotted} that is made of arguments")
        self.push(_made(cls))

    def call(self) -> None:
        function, arguments = self.last(2)
        make = _CALLS.get(_exactly(_Name, function).dotted)
        if make is None:
            raise _RefusedError(f"a call of {function.dotted}")
        self.spend(sum(len(each) for each in _exactly(tuple, arguments) if hasattr(each, "__len__")))
        self.push(make(*arguments))

    def build(self) -> None:
        state = self.stack.pop()
        target = self.stack[-1]
        if isinstance(target, UnpickledObject):
            self.spend(len(state))
            self.foreign.pop(target.name, None)
            target.state.update(_fields(target.name, state))
        elif isinstance(target, _Dtype):
            target.build(*_exactly(tuple, state))
        elif isinstance(target, _Array) and not target:
            _, shape, dtype, fortran, data = _exactly(tuple, state)
            self.spend(len(data))
            target.extend(_values(data, dtype, shape, "F" if fortran else "C"))
        else:
            raise _RefusedError(f"a state for {getattr(target, 'dotted', type(target).__name__)}")


def _fields(name: str, state: Any) -> dict[Any, Any]:
    """The fields in an object's state: a dict, or a pair of the dicts of its `__dict__` and its slots."""
    if isinstance(state, list):  # the state of frozen dataclasses with slots
        raise _RefusedError(f"objects of {name} whose fields have no names (save them as dicts)")
    if isinstance(state, tuple):
        plain, slots = state
        return {**_exactly(dict, plain or {}), **_exactly(dict, slots)}
    fields: dict[Any, Any] = _exactly(dict, state)
    return fields


def _exactly(kind: type[Any], value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{type(value).__name__} where {kind.__name__} goes")
    return value


def _key(value: Any) -> Any:
    """A value that is safe to hash: nested tuples can take forever to hash, and large numbers can all collide."""
    if isinstance(value, int) and abs(value) < _LARGEST_KEY:
        return value
    return _exactly(str, value)


def _set(items: Any = ()) -> set[Any]:
    return set(map(_key, items))


def _pairs(items: list[Any]) -> dict[Any, Any]:
    return dict(zip(map(_key, items[::2]), items[1::2], strict=True))


def _made(cls: Any, base: Any = None, state: None = None) -> UnpickledObject:
    """An object without its state; protocols 0 and 1 also name its base."""
    dotted = _exactly(_Name, cls).dotted
    if dotted in _ADMITTED - _CLASSES or base not in (None, _Name("builtins.object")) or state is not None:
        raise _RefusedError(f"a new {dotted}")
    return UnpickledObject(dotted)


def _encoded(text: str, codec: str) -> bytes:
    """Bytes as protocols before 3 encode them."""
    if codec != "latin1":
        raise _RefusedError(f"_codecs.encode {codec}")
    return str(_exactly(str, text)).encode("latin1")


def _values(data: Any, dtype: Any, shape: Any, order: Any) -> list[Any]:
    if 0 in shape:
        return []
    values: list[Any] = _exactly(list, np.ndarray(shape, _exactly(_Dtype, dtype).dtype, data, order=order).tolist())
    return values


def _scalar(dtype: Any, data: Any) -> Any:
    return np.ndarray((), _exactly(_Dtype, dtype).dtype, data).item()


_CALLS: dict[str, Callable[..., Any]] = {
    "_codecs.encode": _encoded,
    "builtins.bytes": lambda: b"",
    "builtins.set": _set,
    "builtins.frozenset": _set,
    "collections.OrderedDict": lambda: {},
    "collections.defaultdict": lambda factory=None: {},
    "collections.Counter": lambda counts: _exactly(dict, counts),
    "copyreg._reconstructor": _made,
    "numpy.dtype": _Dtype,
    "numpy._core.multiarray._reconstruct": lambda cls, shape, code: _Array(),
    "numpy._core.multiarray.scalar": _scalar,
    "numpy._core.numeric._frombuffer": _values,
}
_ADMITTED = frozenset({*_CALLS, *_CLASSES, *_ARGUMENTS})

_LITERALS = """INT BININT BININT1 BININT2 LONG LONG1 LONG4 STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES
    BINBYTES8 BYTEARRAY8 UNICODE SHORT_BINUNICODE BINUNICODE BINUNICODE8 FLOAT BINFLOAT"""
_GETS, _PUTS = "GET BINGET LONG_BINGET", "PUT BINPUT LONG_BINPUT MEMOIZE"
_OPERATIONS: dict[str, Callable[[_Machine, Any], object]] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda m, _: None),
    **dict.fromkeys(_LITERALS.split(), _Machine.push),
    **dict.fromkeys(_PUTS.split(), _Machine.put),
    **dict.fromkeys(_GETS.split(), lambda m, place: m.push(m.memo[_key(place)])),
    "NONE": lambda m, _: m.push(None),
    "NEWTRUE": lambda m, _: m.push(True),
    "NEWFALSE": lambda m, _: m.push(False),
    "MARK": lambda m, _: m.mark(),
    "POP": lambda m, _: m.pop(),
    "POP_MARK": lambda m, _: m.items(),
    "DUP": lambda m, _: m.push(m.stack[-1]),
    "EMPTY_LIST": lambda m, _: m.push([]),
    "LIST": lambda m, _: m.push(m.items()),
    "APPEND": lambda m, _: m.extend(m.last(1)),
    "APPENDS": lambda m, _: m.extend(m.items()),
    "EMPTY_TUPLE": lambda m, _: m.push(()),
    "TUPLE": lambda m, _: m.push(tuple(m.items())),
    "TUPLE1": lambda m, _: m.push(tuple(m.last(1))),
    "TUPLE2": lambda m, _: m.push(tuple(m.last(2))),
    "TUPLE3": lambda m, _: m.push(tuple(m.last(3))),
    "EMPTY_DICT": lambda m, _: m.push({}),
    "DICT": lambda m, _: m.push(_pairs(m.items())),
    "SETITEM": lambda m, _: m.update(dict, _pairs(m.last(2))),
    "SETITEMS": lambda m, _: m.update(dict, _pairs(m.items())),
    "EMPTY_SET": lambda m, _: m.push(set()),
    "ADDITEMS": lambda m, _: m.update(set, _set(m.items())),
    "FROZENSET": lambda m, _: m.push(_set(m.items())),
    "GLOBAL": lambda m, names: m.name(*names.split(" ", 1)),
    "STACK_GLOBAL": lambda m, _: m.name(*(_exactly(str, each) for each in m.last(2))),
    "NEWOBJ": lambda m, _: m.new(),
    "REDUCE": lambda m, _: m.call(),
    "BUILD": lambda m, _: m.build(),
}
