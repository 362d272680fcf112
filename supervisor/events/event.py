"""What all kinds of events have in common: who wrote it, when, about which step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, TypeVar


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class JournalEvent:
    """One line of the journal. A subclass is one kind; its fields are those of the line.

    A field without a default is always written, one with a default only if it differs from it. A
    code that the reader does not know, and a number that cannot be read as one, become None.

    Attributes:
        time: ISO 8601, UTC; set by the journal, as `attempt` and `rank` are.
        rank: None for the parent's own events.
        step: that it is about; None if there is none.
        left_out: how many events like it were counted, but not written.
        extra: fields of the line that the kind does not have, or not with such a value.
    """

    KIND: ClassVar[str] = ""

    time: str = ""
    attempt: int | None = None
    rank: int | None = None
    step: int | None = None
    left_out: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return self.KIND

    @property
    def times(self) -> int:
        """How many events it stands for: itself, and those left out of the journal."""
        return 1 + max(0, self.left_out)

    # One for all kinds: that each has its own would double the time of their import.
    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and repr(other) == repr(self)  # NaN is equal to NaN

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        given = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self))
        return f"{type(self).__name__}({', '.join(given)})"

    def own_fields(self) -> dict[str, Any]:
        """Returns the fields of its kind that stand in its line, by name."""
        own = {}
        for name, default in _own_defaults(type(self)):
            value = getattr(self, name)
            if default is MISSING or value != default:
                own[name] = value
        if self.left_out:
            own["left_out"] = self.left_out
        return {**own, **self.extra}

    def to_json(self) -> dict[str, Any]:
        """Returns the line as an object; its values have yet to be made plain."""
        head = {"time": self.time, "attempt": self.attempt, "rank": self.rank, "step": self.step}
        return {**head, "kind": self.kind, **self.own_fields()}


E = TypeVar("E", bound=JournalEvent)


def of_kind(events: Iterable[JournalEvent], kind: type[E]) -> list[E]:
    """Returns the events of one kind, in their order."""
    return [event for event in events if isinstance(event, kind)]


HEADER = len(fields(JournalEvent))
"""The fields of a kind come behind those of all."""

_OWN_DEFAULTS: dict[type[JournalEvent], list[tuple[str, Any]]] = {}


def _own_defaults(kind: type[JournalEvent]) -> list[tuple[str, Any]]:
    """The fields of a kind with their defaults, looked up once."""
    if kind not in _OWN_DEFAULTS:
        _OWN_DEFAULTS[kind] = [(each.name, each.default) for each in fields(kind)[HEADER:]]
    return _OWN_DEFAULTS[kind]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class UnknownEvent(JournalEvent):
    """A line of a kind that is not known here: all of its own fields are in `extra`."""

    named: str

    @property
    def kind(self) -> str:
        return self.named

    def own_fields(self) -> dict[str, Any]:
        return dict(self.extra)
