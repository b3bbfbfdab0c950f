"""The registry: what can be chosen by name, built in or your own, and a fingerprint of your own.

    @methods.register("half")         # likewise policies, memory (selections) and models (networks)
    class HalfWeight(Method): ...

A name means what is registered under it now. Result rows of your own method, network or selection are
filed under its fingerprint too: a hash of its compiled code, its defaults, what it closes over, the
globals it reads, the attributes and bases of a class. So a second definition never gets the numbers of
the first. rslib and installed packages enter by name and version only. What has no fingerprint (it holds
a lock or an open file, say) is refused, until `version=` says when it changes.
"""

from __future__ import annotations

import copyreg
import dis
import functools
import hashlib
import importlib
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from rslib.errors import UserError

_STDLIB = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
_HEAP_TYPE = 1 << 9  # the flag of classes that Python code has made
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...))
# What Python's own objects are made of. A code object's file and line numbers do not count.
_ATTRIBUTES: dict[type, tuple[str, ...]] = {
    types.FunctionType: ("__code__", "__defaults__", "__kwdefaults__", "__dict__"),
    types.CodeType: (
        *("co_code", "co_exceptiontable", "co_consts", "co_names", "co_varnames", "co_freevars"),
        *("co_cellvars", "co_flags", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount"),
    ),
    property: ("fget", "fset", "fdel"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    functools.cached_property: ("func",),
}


class RegistryError(UserError, ValueError):
    """A name that is unknown or taken, or an own entry that does not do what its kind must."""


class NoFingerprint(RegistryError):
    """Something whose changes cannot be noticed."""


class Registry(MutableMapping[str, Any]):
    """Entries by name. Built-in entries stay as they are; your own may be replaced by another."""

    def __init__(self, kind: str, built_in: Mapping[str, Any] = {}):
        self._entries = dict(built_in)
        self.kind = kind
        self.built_in = frozenset(built_in)
        self._versions: dict[str, str] = {}

    def register(self, name: str, version: str | int | None = None) -> Callable:
        """Make what is decorated available by name.

        version: stands for the fingerprint. Rows are found again as long as it is the same, so give
            another one whenever the code changes.
        """

        def add(entry: Any) -> Any:
            if version is None:
                self._computed(name, entry)  # raises here, before anything is trained
            self[name] = entry
            if version is not None:
                self._versions[name] = f"version {version}"
            return entry

        return add

    def __setitem__(self, name: str, entry: Any) -> None:
        if name in self.built_in:
            raise RegistryError(f"{self.kind} {name!r} is built in: register yours by another name")
        self._versions.pop(name, None)
        self._entries[name] = entry

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise RegistryError(f"{self.kind} must be one of {', '.join(self)}, got {name!r}")
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def get(self, name: str, default: Any = None) -> Any:
        return self._entries.get(name, default)

    def __delitem__(self, name: str) -> None:
        if name in self.built_in:
            raise RegistryError(f"{self.kind} {name!r} is built in and stays")
        del self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def fingerprint(self, name: str) -> str | None:
        """The version or the fingerprint of your own entry as it is now; None of a built-in one."""
        if name in self.built_in:
            return None
        return self._versions.get(name) or self._computed(name, self[name])

    def _computed(self, name: str, entry: Any) -> str:
        try:
            return fingerprint(entry)
        except NoFingerprint as error:
            raise NoFingerprint(
                f"{self.kind} {name!r} has no fingerprint: {error}. Register it with version=1, and "
                "with another version whenever you change it"
            ) from None

    def own(self) -> dict[str, tuple[Any, str | None]]:
        """Your own entries with their versions, for `replace_own` in another process."""
        names = [name for name in self if name not in self.built_in]
        return {name: (self[name], self._versions.get(name)) for name in names}

    def replace_own(self, entries: Mapping[str, tuple[Any, str | None]]) -> None:
        """Register these entries and no others beside the built-in ones."""
        for name in self.own():
            del self[name]
        for name, (entry, version) in entries.items():
            self[name] = entry
            if version is not None:
                self._versions[name] = version


# -- fingerprints ----------------------------------------------------------------------------------


def fingerprint(value: Any) -> str:
    """Hash all that decides what a function, class or value does; raises NoFingerprint."""
    return _hash(value, {}, [])[:20]


def _hash(value: Any, known: dict[int, str], around: list[Any]) -> str:
    """Hash a value and what it refers to.

    known: the hashes of functions and classes, by id.
    around: what is being hashed; a function may refer to itself.
    """
    kind = type(value)
    if kind is bytes and len(value) > 4096:  # weights, say: their repr would take seconds
        return hashlib.sha256(value).hexdigest()
    if kind in _PLAIN:
        return _sha([kind.__name__, repr(value)])
    for depth, other in enumerate(around):
        if other is value:
            return _sha(["around", str(depth)])
    if id(value) not in known:
        parts = [_hash(part, known, [*around, value]) for part in _parts(value)]
        if kind in (set, frozenset):  # their order differs between processes
            parts.sort()
        found = _sha([kind.__name__, *parts])
        if not isinstance(value, type | types.FunctionType):
            return found  # the next value may have the same id
        known[id(value)] = found
    return known[id(value)]


def _parts(value: Any) -> Iterator[Any]:
    """All that a value is made of: plain values, and others to be taken apart in turn."""
    kind = type(value)
    if kind in (list, tuple, set, frozenset):
        yield from value
    elif kind is dict:
        yield from value.items()
    elif home := _installed(value):
        yield from (*home, getattr(value, "__qualname__", ""))
    elif kind in _ATTRIBUTES:
        yield from (getattr(value, name) for name in _ATTRIBUTES[kind])
        if kind is types.FunctionType:
            yield from (_contents(cell) for cell in value.__closure__ or ())
            yield from _globals_of(value)
    elif isinstance(value, type):
        yield from (kind, *value.__bases__)
        for name, item in sorted(vars(value).items()):
            # Of the double-underscored names only methods count: the others are Python's own notes.
            if name != "_abc_impl" and (callable(item) or not name.startswith("__")):
                yield from (name, item)
    elif isinstance(value, types.ModuleType):
        # The user's own. What a function takes from a global one is all that counts of it there.
        yield value.__name__
        yield from ((n, v) for n, v in sorted(vars(value).items()) if not n.startswith("__"))
    elif hasattr(value, "__wrapped__"):  # such as functools.cache
        yield value.__wrapped__
    else:
        yield from _pickled(value)


def _globals_of(function: types.FunctionType) -> Iterator[Any]:
    """The globals that a function reads, the modules it imports, and what it takes from the user's."""
    read, imported, mentioned = _names(function.__code__)
    used = {name: function.__globals__[name] for name in read if name in function.__globals__}
    for name in imported:
        try:
            used[name] = importlib.import_module(name)
        except (ImportError, ValueError):
            raise NoFingerprint(f"it imports {name!r}, which is not found") from None
    for name, item in sorted(used.items()):
        yield name
        items = [item]
        while items:
            item = items.pop()
            taken = []
            if isinstance(item, types.ModuleType) and not _installed(item):
                taken = [vars(item)[n] for n in mentioned if n in vars(item)]
            if not taken:
                yield item
            items += taken


@functools.lru_cache(maxsize=1000)
def _names(code: types.CodeType) -> tuple[list[str], list[str], list[str]]:
    """The names of globals read, of modules imported, and all names; inner functions included."""
    read, imported, mentioned = set(), set(), set(code.co_names)
    mentioned |= {c for c in code.co_consts if isinstance(c, str)}  # of getattr(module, "name")
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and not step.argval.startswith("__"):
            read.add(step.argval)
        elif step.opname == "IMPORT_NAME":
            imported.add(step.argval)
    for inner in (c for c in code.co_consts if isinstance(c, types.CodeType)):
        for names, more in zip((read, imported, mentioned), _names(inner), strict=True):
            names.update(more)
    return sorted(read), sorted(imported), sorted(mentioned)


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "empty"  # until the class that is being defined exists


def _installed(value: Any) -> tuple[str, str] | None:
    """The module and version of code that is not the user's: Python's, rslib's or a package's."""
    bound = not isinstance(getattr(value, "__self__", None), types.ModuleType | type | None)
    if isinstance(value, types.ModuleType):
        module = value.__name__
    elif (
        callable(value)
        and "<locals>" not in getattr(value, "__qualname__", "<locals>")
        and not bound
    ):
        module = getattr(value, "__module__", None)
    else:
        return None  # a value, or made by a function: what it was made with counts
    written = isinstance(value, types.FunctionType) or getattr(value, "__flags__", 0) & _HEAP_TYPE
    if not isinstance(module, str):  # compiled, or the user's by exec without a __name__
        return None if written else ("compiled", "")
    top = module.partition(".")[0]
    package = sys.modules.get(top)
    file = getattr(package, "__file__", None) or _STDLIB[0]  # built into Python
    if top in ("__main__", "__mp_main__") or (top == "builtins" and written):
        return None  # the user's, whichever program runs it, or by exec without a __name__
    # A user's profile.py is not Python's, although it has its name.
    stdlib = top in sys.stdlib_module_names and file.startswith(_STDLIB)
    if top == "rslib" or stdlib or {*Path(file).parts} & {"site-packages", "dist-packages"}:
        return module, str(getattr(package, "__version__", ""))
    return None


def _pickled(value: Any) -> Iterator[Any]:
    """What pickle would write of an object, and its class."""
    yield type(value)
    try:
        if hasattr(value, "requires_grad"):  # a tensor, whose pickle depends on what else it shares
            value = value.detach().cpu().numpy()
        reduce = copyreg.dispatch_table.get(type(value))
        reduced = reduce(value) if reduce else value.__reduce_ex__(4)
    except Exception:
        name = type(value).__name__
        raise NoFingerprint(f"it uses an object of class {name!r}, which cannot be read") from None
    if isinstance(reduced, str):
        if not _installed(type(value)):
            raise NoFingerprint(f"it uses {reduced!r}, whose code cannot be read")
        yield reduced
    else:
        yield from (list(part) if isinstance(part, Iterator) else part for part in reduced)


def _sha(parts: list[str]) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()
