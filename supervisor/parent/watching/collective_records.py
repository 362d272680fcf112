"""What torch's records of their last collectives say of ranks that wait for each other.

Which of several ranks hangs, where all of them are silent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_MOST_BYTES = 2**24
Group = tuple[str, str, str]
_SAME_SIZE = ("all_reduce", "broadcast")
"""These need the same size on all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """A call as torch has recorded it.

    Attributes:
        group: the group's name, what it is for (``undefined`` where nobody said) and its backend.
        number: among the group's collectives, from 1 on; equal on all ranks for the same one.
        name: as ``all_reduce``.
        sizes: of what was given to it.
    """

    group: Group
    number: int
    name: str
    sizes: tuple[tuple[int, ...], ...] = ()

    @property
    def compared(self) -> tuple[Any, ...]:
        """What all ranks of the group have to have in common."""
        return (self.name, self.sizes) if self.name in _SAME_SIZE else (self.name,)

    def __str__(self) -> str:
        sizes = " and ".join(str(list(size)) for size in self.sizes)
        return self.name + (f" of {sizes}" if sizes else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCollectives:
    """One rank's.

    Attributes:
        waits: the first call of each group that is not over.
        entered: the last number of each group.
    """

    waits: Mapping[Group, Collective] = field(default_factory=dict)
    entered: Mapping[Group, int] = field(default_factory=dict)


def read_records(path: Path) -> RankCollectives | None:
    """Returns what a rank has left there; None if there is nothing that can be read."""
    try:
        with path.open("rb") as file:
            documents = json.loads(file.read(_MOST_BYTES))
        calls = [_call(entry) for document in documents for entry in document.get("entries", ())]
    except (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError):
        return None
    except RecursionError:
        return None
    waits: dict[Group, Collective] = {}
    entered: dict[Group, int] = {}
    for call, is_over in filter(None, calls):
        entered[call.group] = max(call.number, entered.get(call.group, 0))
        if is_over:  # a group's calls are carried out in order: older ones are over as well
            waits.pop(call.group, None)
        else:
            waits.setdefault(call.group, call)
    return RankCollectives(waits=waits, entered=entered) if entered else None


def find_awaited_rank(ranks: Mapping[int, RankCollectives]) -> tuple[int, str] | None:
    """Returns the rank that others wait for in a collective, and how that was seen.

    It has called another one, or not yet the one in which they are. None if there is no such rank.

    Args:
        ranks: of all ranks.
    """
    return _mismatch(ranks) or _missing(ranks)


def _mismatch(ranks: Mapping[int, RankCollectives]) -> tuple[int, str] | None:
    calls: dict[tuple[Any, int], dict[int, Collective]] = {}
    for rank, known in ranks.items():
        for group, call in known.waits.items():
            calls.setdefault((group, call.number), {})[rank] = call
    for (group, number), by_rank in calls.items():
        kinds: dict[tuple[Any, ...], list[int]] = {}
        for rank, call in by_rank.items():
            kinds.setdefault(call.compared, []).append(rank)
        if len(kinds) > 1:
            *_, most, fewest = sorted(kinds.values(), key=lambda found: (-len(found), found))
            others = f"rank {most[0]} is in {by_rank[most[0]]}"
            this = f"rank {fewest[0]} in {by_rank[fewest[0]]}"
            return fewest[0], (
                f"the ranks' collectives do not match: {others}, {this}, "
                f"both as number {number} of {_words_of(group)}"
            )
    return None


def _missing(ranks: Mapping[int, RankCollectives]) -> tuple[int, str] | None:
    """Of those that others wait for, one that waits for nobody itself comes first."""
    furthest: dict[Group, tuple[int, Collective]] = {}
    for rank, known in ranks.items():
        for group, call in known.waits.items():
            if group not in furthest or call.number > furthest[group][1].number:
                furthest[group] = rank, call
    found = [
        (len(known.waits), rank, waiting, call)
        for rank, known in ranks.items()
        for group, (waiting, call) in furthest.items()
        if known.entered.get(group, call.number) < call.number
    ]
    if not found:
        return None
    _, rank, waiting, call = min(found, key=lambda one: one[:3])
    return rank, (
        f"rank {waiting} waits in {call}, number {call.number} of {_words_of(call.group)}, "
        f"which rank {rank} has not called"
    )


def _words_of(group: Group) -> str:
    name, purpose, _ = group
    return f"group {name if purpose in ('', 'undefined') else purpose}"


def _call(entry: Mapping[str, Any]) -> tuple[Collective, bool] | None:
    """A collective and whether it is over; messages between two ranks are none."""
    if entry["is_p2p"]:
        return None
    backend, _, name = entry["profiling_name"].partition(":")
    sizes = tuple(tuple(int(n) for n in size) for size in entry["input_sizes"])
    group_name, purpose = map(str, entry["process_group"])
    group = (group_name, purpose, backend)
    number = int(entry["collective_seq_id"])
    return Collective(group=group, number=number, name=name, sizes=sizes), bool(entry["retired"])


_WAITING = ("torch/distributed/", "_engine_run_backward", "rank_board.py")
"""In the innermost frames of a rank that waits for the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SilentRank:
    """What is known of one rank of a hung attempt.

    Attributes:
        rank: which.
        collectives: how many it has entered; None if that is not known.
        last_step: the last step that it has recorded.
        frames: of its main thread, innermost first.
        records: torch's of its last collectives; None if there are none.
    """

    rank: int
    collectives: int | None = None
    last_step: int | None = None
    frames: tuple[str, ...] = ()
    records: RankCollectives | None = None


def find_hanging_rank(ranks: Sequence[SilentRank]) -> tuple[int, str]:
    """Returns the rank that the others wait for, and how that was seen.

    It is not in the collective in which they are, has entered fewer, or recorded fewer steps, or
    does not stand where one waits for others. If none is found the first is returned, and that all
    are alike.
    """
    if len(ranks) == 1:
        return ranks[0].rank, ""
    records = {rank.rank: rank.records for rank in ranks if rank.records is not None}
    if len(records) == len(ranks) and (awaited := find_awaited_rank(records)) is not None:
        return awaited
    counts = {rank.rank: rank.collectives for rank in ranks if rank.collectives is not None}
    steps = {rank.rank: -1 if rank.last_step is None else rank.last_step for rank in ranks}
    if len(counts) == len(ranks) and len(set(counts.values())) > 1:
        found = min(counts, key=lambda rank: (counts[rank], rank))
        return found, f"rank {found} has entered {counts[found]} collectives, another " + str(
            max(counts.values())
        )
    if len(set(steps.values())) > 1:
        found = min(steps, key=lambda rank: (steps[rank], rank))
        return found, f"rank {found} stands at step {steps[found]}, another " + str(
            max(steps.values())
        )
    busy = [rank.rank for rank in ranks if rank.frames and not _waits(rank)]
    if len(busy) == 1:
        return busy[0], f"rank {busy[0]} does not wait for the others, and they wait"
    return ranks[0].rank, "all ranks stand at the same place: the network, or a device"


def _waits(rank: SilentRank) -> bool:
    return any(word in frame for frame in rank.frames[:3] for word in _WAITING)
