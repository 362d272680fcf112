"""Whether all ranks stand at the same place: nothing that one sends is still to be received."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
import xxhash

from supervisor.errors import CheckpointError

EXCHANGED = "exchanged"
"""In a checkpoint's meta of each rank: `Exchanges.balance`, where its state was taken."""
_MODULO = 2**53  # a whole number in any JSON


class Exchanges:
    """What this rank has exchanged with others, as one number.

    The boundary of a step is one place for all ranks only if each collective was called before it
    by all of its ranks or by none, and each message sent before it was received before it. Resumed
    from anything else, ranks wait for what is never sent, or take one message for another.

    Each rank weighs its counts with numbers of which the sum over all ranks is 0, modulo 2**53,
    where the counts match. So one number a rank is enough, whatever groups and pairs there are.

    Attributes:
        at_boundary: the balance at the last boundary that was at a forward; else 0.
    """

    def __init__(self) -> None:
        self.at_boundary = 0
        self._messages = 0
        self._aside: dict[str, int] = {}
        self._before: dict[str, int] = {}
        self._unknown: list[tuple[Any, Any]] = []
        self._depth = 0

    def begin(self) -> None:
        """All ranks stand at the same place: called where a replay arrives."""
        self._messages = 0
        self._unknown.clear()
        self._before = {name: _sequence(group) for group, name, _, _ in _groups()}
        self._aside.clear()

    def balance(self) -> int:
        """Returns what this rank adds to the sum."""
        self._look_at_unknown()
        total = self._messages
        for group, name, own, size in _groups():
            calls = _sequence(group) - self._before.get(name, 0) - self._aside.get(name, 0)
            behind = (own + 1) % size
            total += calls * (_weight(name, own, own) - _weight(name, behind, behind))
        return total % _MODULO

    def sent(self, group: Any, peer: int) -> None:
        """A message to the rank `peer` of the group was begun."""
        own, name = _own(group)
        self._messages += _weight(name, own, peer)

    def received(self, group: Any, peer: int) -> None:
        """The receipt of a message from the rank `peer` of the group was begun."""
        own, name = _own(group)
        self._messages -= _weight(name, peer, own)

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

    def _look_at_unknown(self) -> None:
        known = [pair for pair in self._unknown if pair[1].is_completed()]
        self._unknown = [pair for pair in self._unknown if pair not in known]
        for group, work in known:
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


def _weight(name: str, source: int, target: int) -> int:
    return xxhash.xxh3_64_intdigest(f"{name} {source} {target}".encode())
