"""What ranks exchange before all of them train: the only exchanges that a replay makes as well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

BEGAN = "began"
"""In a checkpoint's meta of each rank: `Counts.as_meta` at the place where it began to train."""


@dataclass
class Counts:
    """How much one rank has exchanged.

    Attributes:
        calls: group's name → collectives; None where its backend does not count them.
        sent: `pair` → messages.
        received: the same.
    """

    calls: dict[str, int | None] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    received: dict[str, int] = field(default_factory=dict)

    def as_meta(self) -> dict[str, Any]:
        """Returns them as values of JSON."""
        return {"calls": self.calls, "sent": self.sent, "received": self.received}

    @classmethod
    def from_meta(cls, meta: Mapping[str, Any]) -> Counts:
        return cls(
            dict(meta.get("calls", {})), dict(meta.get("sent", {})), dict(meta.get("received", {}))
        )


def pair(group: str, source: int, target: int) -> str:
    """Returns the name of messages in a group from one of its ranks to another."""
    return f"{group} {source} {target}"


class CommonBeginning:
    """Knows of each exchange whether all that take part in it came to it before they trained.

    A rank may wait for a message before its first forward that another one sends behind its own (a
    pipeline), or not train itself before the others have (one that gathers their gradients). In a
    replay a rank that trains sends nothing, so the other one must not wait for it.

    Args:
        began: rank → what it had exchanged when it began to train, of all ranks.
    """

    def __init__(self, began: Mapping[int, Counts]) -> None:
        self._began = began

    @property
    def is_one_place(self) -> bool:
        """Whether all have begun to train at one place: nothing was exchanged by half before it."""
        counts = self._began.values()
        names = {name for each in counts for name in each.calls}
        calls = [{each.calls[name] for each in counts if name in each.calls} for name in names]
        sent = {name: number for each in counts for name, number in each.sent.items()}
        received = {name: number for each in counts for name, number in each.received.items()}
        return sent == received and all(len(found) == 1 for found in calls)

    def has_call(self, group: str, ranks: list[int], number: int) -> bool:
        """Whether a collective is one of these.

        Args:
            group: its group's name.
            ranks: who takes part.
            number: how many such calls there were before, in this process.
        """
        counts = [self._began[rank].calls.get(group, 0) for rank in ranks]
        return None in counts or number < min(count for count in counts if count is not None)

    def has_message(self, group: str, ranks: list[int], ends: tuple[int, int], number: int) -> bool:
        """The same for a message.

        Args:
            group: its group's name.
            ranks: of that group, in its order.
            ends: source and target, as numbers within the group.
            number: how many messages of this pair there were before, in this process.
        """
        return number < self._messages(group, ranks, *ends)

    def has_message_from_any(self, group: str, ranks: list[int], own: int, number: int) -> bool:
        """The same for one of which the source is not known yet, of all that `own` receives."""
        return number < sum(self._messages(group, ranks, n, own) for n in range(len(ranks)))

    def _messages(self, group: str, ranks: list[int], source: int, target: int) -> int:
        name = pair(group, source, target)
        sent = self._began[ranks[source]].sent.get(name, 0)
        return min(sent, self._began[ranks[target]].received.get(name, 0))


def began_of(meta: Mapping[str, Any]) -> Counts | None:
    """Returns what a rank had exchanged when it began to train; None if its part does not tell."""
    return None if meta.get(BEGAN) is None else Counts.from_meta(meta[BEGAN])


def common_beginning(metas: Mapping[int, Mapping[str, Any]]) -> CommonBeginning | None:
    """Returns it from a checkpoint.

    Args:
        metas: rank → its part's meta, of all ranks.

    Returns:
        None where one of them does not have it.
    """
    began = {rank: began_of(meta) for rank, meta in metas.items()}
    known = {rank: counts for rank, counts in began.items() if counts is not None}
    return CommonBeginning(known) if len(known) == len(began) else None
