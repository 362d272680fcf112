"""A table of the script's objects that asks nothing of them."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class _Reference(weakref.ref[K]):
    __slots__ = ("number",)
    number: int


class ByIdentity(Generic[K, V]):
    """Objects that are held weakly → values; an entry goes when its object goes.

    Neither `==` nor a hash of the objects is asked, which may be the script's own, raise, or
    compare tensors; and a new object at the address of a dead one is not taken for it. All that
    needs such a table uses this one (`tests/test_identity.py`). A look takes 0.3 us, as one into a
    `weakref.WeakKeyDictionary`; torch's `WeakIdKeyDictionary` takes 2.2.

    As a set, the values are None.

    Raises:
        TypeError: there are no weak references to an object that is put in.
    """

    __slots__ = ("__weakref__", "_entries", "_remove")

    def __init__(self) -> None:
        self._entries: dict[int, tuple[_Reference[K], V]] = {}
        table = weakref.ref(self)  # the table goes without waiting for the garbage collector

        def remove(dead: Any) -> None:
            there = table()
            known = None if there is None else there._entries.get(dead.number)
            if there is not None and known is not None and known[0] is dead:
                del there._entries[dead.number]

        self._remove = remove

    def get(self, key: K | None, default: Any = None) -> Any:
        known = self._entries.get(id(key))
        return default if known is None or known[0]() is not key else known[1]

    def __contains__(self, key: K | None) -> bool:
        known = self._entries.get(id(key))
        return known is not None and known[0]() is key

    def __setitem__(self, key: K, value: V) -> None:
        reference = _Reference(key, self._remove)
        reference.number = id(key)
        self._entries[reference.number] = reference, value

    def pop(self, key: K, default: Any = None) -> Any:
        value = self.get(key, default)
        if key in self:
            del self._entries[id(key)]
        return value

    def items(self) -> Iterator[tuple[K, V]]:
        """Yields those that live, in the order of their first entry."""
        for reference, value in list(self._entries.values()):
            key = reference()
            if key is not None:
                yield key, value

    def __iter__(self) -> Iterator[K]:
        return (key for key, _ in self.items())

    def __len__(self) -> int:
        return len(self._entries)

    def clear(self) -> None:
        self._entries.clear()


class IdentitySet(ByIdentity[K, None]):
    """The same as a set."""

    __slots__ = ()

    def __init__(self, members: Iterable[K] = ()) -> None:
        super().__init__()
        self.update(members)

    def add(self, member: K) -> None:
        if member not in self:
            self[member] = None

    def update(self, members: Iterable[K]) -> None:
        for member in members:
            self.add(member)

    def discard(self, member: K) -> None:
        self.pop(member)
