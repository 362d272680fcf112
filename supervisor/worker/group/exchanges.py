"""Whether all ranks stand at the same place: nothing that one sends is still to be received."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
import xxhash

from supervisor.errors import CheckpointError
from supervisor.worker.core.part import Arrived, Part, SavePoint
from supervisor.worker.group.common_beginning import BEGAN, CommonBeginning, Counts, pair

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
        at_forward: the balance at the last boundary that was at a forward; else 0.
        began: what had been exchanged when this rank began to train; None before. A replay is
            given that of the attempt that it replays.
    """

    name = "exchanges"

    def __init__(self, *, is_alone: bool = False, began: Counts | None = None) -> None:
        self._is_alone = is_alone
        self.at_forward = 0
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

    def begin(self) -> None:
        """All ranks stand at the same place: called where a replay arrives."""
        self._messages = 0
        self._since = Counts()
        self._unknown.clear()
        self._before = {name: _sequence(group) for group, name, _, _ in _groups()}
        self._aside.clear()

    def goes_live(self, arrived: Arrived) -> None:
        self.begin()

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
            number = int(group._get_sequence_number_for_group())
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
        """Within it objects are exchanged, which a replay takes off its tape."""
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
            behind = (own + 1) % size
            total += calls * (_weight(name, own, own) - _weight(name, behind, behind))
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
        return int(group._get_sequence_number_for_group())
    except RuntimeError:  # a backend that does not count
        return 0


def _add(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1


def _weight(name: str, source: int, target: int) -> int:
    return xxhash.xxh3_64_intdigest(f"{name} {source} {target}".encode())
