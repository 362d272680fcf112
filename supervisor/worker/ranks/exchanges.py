"""Whether all ranks stand at the same place: nothing that one sends is still to be received.

What ranks exchange before all of them train: the only exchanges that a replay makes as well. When
models that are wrapped for several ranks first average gradients.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import xxhash

from supervisor.errors import CheckpointError
from supervisor.worker.core.part import Arrived, Part, SavePoint
from supervisor.worker.ranks.sequence_numbers import SequenceNumbers

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


EXCHANGED = "exchanged"
"""In a checkpoint's meta of each rank: `Exchanges.balance`, where its state was taken."""
_MODULO = 2**53  # a whole number in any JSON


class Exchanges(Part):
    """What this rank has exchanged with others, as one number.

    The boundary of a step is one place for all ranks only if each collective was called before it
    by all of its ranks or by none, and each message sent before it was received before it. Resumed
    from anything else, ranks wait for what is never sent, or take one message for another.

    Each rank weighs its counts with numbers of which the sum over all ranks is 0, modulo 2**53,
    where the counts match. So one number a rank is enough, whatever groups and pairs there are.

    Attributes:
        at_forward: the balance at the last boundary at a forward at which it was asked for; else 0.
        are_asked: for the balance at the next boundary, of all ranks alike.
        began: what had been exchanged when this rank began to train; None before. A replay is
            given that of the attempt that it replays.
    """

    name = "exchanges"

    def __init__(self, *, is_alone: bool = False, began: Counts | None = None) -> None:
        self._is_alone = is_alone
        self.at_forward = 0
        self.are_asked = True
        self.began = began
        self._has_begun = False
        self._so_far = Counts()
        self._since = Counts()
        self._told: dict[str, int] = {}
        self._tells = 0
        self._messages = 0
        self._aside: dict[str, int] = {}
        self._before: dict[str, int] = {}
        self._unknown: list[tuple[Any, Any]] = []
        self._depth = 0

    def start(self) -> None:
        """All ranks stand at the same place: called where a replay arrives."""
        self._messages = 0
        self._since = Counts()
        self._unknown.clear()
        self._before = {name: _sequence(group) for group, name, _, _ in _groups()}
        self._aside.clear()

    def goes_live(self, arrived: Arrived) -> None:
        self.start()

    def standing(self) -> dict[str, Any]:
        """Returns from where this rank counts, as values of JSON: for one that takes its place."""
        forward = {"at_forward": self.at_forward, "are_asked": self.are_asked}
        return {"before": self._before, "aside": self._aside, **forward}

    def stand_at(self, standing: Mapping[str, Any]) -> None:
        """This rank takes the place of one that stood there."""
        self._before, self._aside = dict(standing["before"]), dict(standing["aside"])
        self.at_forward, self.are_asked = standing["at_forward"], standing["are_asked"]

    def save(self, point: SavePoint) -> None:
        began = None if self.began is None else self.began.as_meta()
        point.note({EXCHANGED: self.balance(), BEGAN: began})

    def training_starts(self) -> None:
        if self._is_alone:
            return
        self._look_at_unknown()
        self._has_begun = True
        if self.began is None:
            calls = {name: self.calls(group) for group, name, _, _ in _groups()}
            self.began = Counts(calls, self._so_far.sent, self._so_far.received)

    def calls(self, group: Any) -> int | None:
        """Returns how many collectives of the group this rank has called in this process; None if
        nobody counts them. Objects and messages do not count."""
        name = _own(group)[1]
        try:
            number = SequenceNumbers.of(group)
        except RuntimeError:
            return None
        return number - self._aside.get(name, 0) - self._told.get(name, 0)

    def messages_sent(self, group: Any, peer: int) -> int:
        """Returns how many messages this rank has sent to the rank `peer` of the group before it
        trained; those that carry objects do not count."""
        own, name = _own(group)
        return self._so_far.sent.get(pair(name, own, peer), 0)

    def messages_received(self, group: Any, peer: int | None) -> int:
        """The same for what came from `peer`; None for any."""
        own, name = _own(group)
        if peer is not None:
            return self._so_far.received.get(pair(name, peer, own), 0)
        received = self._so_far.received
        from_all = sum(received.get(pair(name, other, own), 0) for other in range(group.size()))
        return from_all + sum(waiting is group for waiting, _ in self._unknown)

    def is_common(
        self, beginning: CommonBeginning, group: Any, kind: str, args: tuple[Any, ...]
    ) -> bool:
        """Whether all ranks that take part come to the next exchange before they train.

        Args:
            beginning: of them.
            group: in which it is made.
            kind: name of the operation of torch.
            args: its arguments.
        """
        own, name = _own(group)
        ranks = torch.distributed.get_process_group_ranks(group)
        if kind == "send":
            number, ends = self.messages_sent(group, args[2]), (own, args[2])
            return beginning.has_message(name, ranks, ends, number)
        if kind == "recv_":
            number, ends = self.messages_received(group, args[2]), (args[2], own)
            return beginning.has_message(name, ranks, ends, number)
        if kind == "recv_any_source_":
            number = self.messages_received(group, None)
            return beginning.has_message_from_any(name, ranks, own, number)
        calls = self.calls(group)
        return calls is None or beginning.has_call(name, ranks, calls)

    @contextlib.contextmanager
    def tells(self, group: Any) -> Iterator[None]:
        """Within it objects are exchanged, which a replay takes off its replay log."""
        name = _own(group)[1]
        before = _sequence(group) - self._aside.get(name, 0)
        self._tells += 1
        try:
            yield
        finally:
            self._tells -= 1
            moved = _sequence(group) - self._aside.get(name, 0) - before
            self._told[name] = self._told.get(name, 0) + moved

    def balance(self) -> int:
        """Returns what this rank adds to the sum."""
        self._look_at_unknown()
        total = self._messages
        for group, name, own, size in _groups():
            calls = _sequence(group) - self._before.get(name, 0) - self._aside.get(name, 0)
            total += calls * _share(name, own, size)
        return total % _MODULO

    def so_far(self) -> Counts:
        """Returns what this rank has exchanged since it began, or since its replay has arrived;
        from any thread."""
        calls: dict[str, int | None] = {
            name: _sequence(group) - self._before.get(name, 0) - self._aside.get(name, 0)
            for group, name, _, _ in list(_groups())
        }
        return Counts(calls, self._since.sent.copy(), self._since.received.copy())

    def is_behind(self, other: Counts) -> bool:
        """Whether another rank has begun an exchange with this one that is still to come here.

        Args:
            other: its `so_far`.
        """
        mine = self.so_far()
        for _, name, own, size in list(_groups()):
            if (other.calls.get(name) or 0) > (mine.calls.get(name) or 0):
                return True
            for peer in range(size):
                to, back = pair(name, own, peer), pair(name, peer, own)
                if other.received.get(to, 0) > mine.sent.get(to, 0):
                    return True
                if other.sent.get(back, 0) > mine.received.get(back, 0):
                    return True
        return False

    def sent(self, group: Any, peer: int) -> None:
        """A message to the rank `peer` of the group was begun."""
        own, name = _own(group)
        self._messages += _weight(name, own, peer)
        _add(self._since.sent, pair(name, own, peer))
        self._count(self._so_far.sent, pair(name, own, peer))

    def received(self, group: Any, peer: int) -> None:
        """The receipt of a message from the rank `peer` of the group was begun."""
        own, name = _own(group)
        self._messages -= _weight(name, peer, own)
        _add(self._since.received, pair(name, peer, own))
        self._count(self._so_far.received, pair(name, peer, own))

    def received_from_any(self, group: Any, work: Any) -> None:
        """The same where it is not known yet from which one."""
        self._unknown.append((group, work))

    @contextlib.contextmanager
    def aside(self, group: Any, *, counts: int = 0) -> Iterator[None]:
        """Within it the group's number of collectives goes up in another way on each rank.

        Args:
            group: of the calls.
            counts: how many collectives they are.
        """
        before = _sequence(group)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                name = _own(group)[1]
                moved = _sequence(group) - before - counts
                self._aside[name] = self._aside.get(name, 0) + moved

    def _count(self, counts: dict[str, int], name: str) -> None:
        if not (self._has_begun or self._tells):
            _add(counts, name)

    def _look_at_unknown(self) -> None:
        if not self._unknown:
            return
        known = [one for one in self._unknown if one[1].is_completed()]
        self._unknown = [one for one in self._unknown if one not in known]
        for group, work in known:
            with contextlib.suppress(RuntimeError):  # of a replay: it came from nobody
                self.received(group, work._source_rank())


def is_same_place(balances: Iterable[int]) -> bool:
    """Whether these balances, of all ranks, were taken at one place."""
    return sum(balances) % _MODULO == 0


def check_same_place(metas: Mapping[int, Mapping[str, Any]]) -> None:
    """Raises CheckpointError if states of several ranks were not taken at one place.

    Args:
        metas: rank → its part's meta, of all ranks.
    """
    if not is_same_place(int(meta.get(EXCHANGED, 0)) for meta in metas.values()):
        raise CheckpointError(
            "the ranks do not stand at the same place of the script: some have sent or called for "
            "what others come to later"
        )


def _groups() -> Iterator[tuple[Any, str, int, int]]:
    """Yields each group that this rank shares with others, its name, the own rank and the size."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return
    for group, name in torch.distributed.distributed_c10d._world.pg_names.items():
        if group.size() > 1:
            yield group, name, group.rank(), group.size()


def _own(group: Any) -> tuple[int, str]:
    return group.rank(), torch.distributed.distributed_c10d._world.pg_names.get(group, "")


def _sequence(group: Any) -> int:
    try:
        return SequenceNumbers.of(group)
    except RuntimeError:  # a backend that does not count
        return 0


def _add(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1


def _weight(name: str, source: int, target: int) -> int:
    return xxhash.xxh3_64_intdigest(f"{name} {source} {target}".encode())


@functools.lru_cache(maxsize=4096)
def _share(name: str, own: int, size: int) -> int:
    """What a rank adds for each collective of a group: over all of its ranks the sum is 0."""
    behind = (own + 1) % size
    return _weight(name, own, own) - _weight(name, behind, behind)


class FirstAverages:
    """Tells the forwards at which a wrapper (`DistributedDataParallel`) begins: its first one, and
    the one at which it arranges its buckets by what it saw in the backward behind that.

    A replay has to execute these: from then on the wrapper sums in another order. Which wrappers a
    model's forward calls may depend on the step. Wrappers of some ranks alone do not count: the
    others would not take part in what else is exchanged there.

    Attributes:
        are_open: there is one that has not arranged its buckets.
    """

    def __init__(self) -> None:
        self.are_open = False
        self._open: weakref.WeakKeyDictionary[Any, tuple[bool, bool]] = weakref.WeakKeyDictionary()

    def made(self, wrapper: Any) -> None:
        """Called when a wrapper has been made."""
        import torch.distributed as dist

        if wrapper.process_group.size() == dist.get_world_size():
            self._open[wrapper] = _stage(wrapper)
            self.are_open = True

    def idle(self) -> list[Any]:
        """Wrappers that have never run."""
        return [wrapper for wrapper in self._open if not _stage(wrapper)[0]]

    def has_begun(self) -> bool:
        """Whether one has begun, or arranged its buckets, since this was asked last."""
        found = {wrapper: _stage(wrapper) for wrapper in list(self._open)}
        changed = any(self._open[wrapper] != stage for wrapper, stage in found.items())
        for wrapper, stage in found.items():
            if _is_last(wrapper, stage):
                del self._open[wrapper]
            else:
                self._open[wrapper] = stage
        self.are_open = bool(self._open)
        return changed


def _stage(wrapper: Any) -> tuple[bool, bool]:
    return bool(wrapper._lazy_init_ran), bool(wrapper._has_rebuilt_buckets)


def _is_last(wrapper: Any, stage: tuple[bool, bool]) -> bool:
    """Buckets are never arranged anew where the parts of a graph are looked for at each step."""
    never = wrapper.find_unused_parameters and not wrapper.static_graph
    return stage == (True, True) or (never and stage[0])
