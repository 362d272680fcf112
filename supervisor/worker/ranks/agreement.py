"""All ranks judge the same record, at the same step, and do the same about it.

When a boundary is looked at, where all ranks must look at the same one. What a rank tells the
others of a step: its record, what is due for it, and what it decided.
"""

from __future__ import annotations

import json
import math
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import xxhash

from supervisor.agreement import agree
from supervisor.errors import ReplayError
from supervisor.held_memory import HeldMemory
from supervisor.ranks import FIRST_RANK
from supervisor.records import StepRecord
from supervisor.storage.run.healing_memory import takes_dead_ranks_place
from supervisor.storage.run.mailboxes import StepMailbox
from supervisor.worker.core.boundaries import BoundarySchedule, GroupTurns
from supervisor.worker.core.progress import Progress
from supervisor.worker.ranks.exchanges import is_same_place
from supervisor.worker.ranks.nodes_mailbox import Mailbox
from supervisor.worker.ranks.waiting_ranks import WaitingRanks


class GroupSchedule(BoundarySchedule):
    """What only this rank knows (its clock, a signal that it got) waits for the agreement.

    Attributes:
        wishes_to_leave: why somebody wants this process to end; empty if nobody does.
    """

    __slots__ = ("_planned", "wishes_to_leave")

    def __init__(self) -> None:
        super().__init__()
        self._planned = (0.0, math.inf)
        self.wishes_to_leave = ""

    def is_due(self, step: int) -> bool:
        """Whether this rank has planned something for the boundary of `step`, or before."""
        return step >= self._planned[0] or time.monotonic() >= self._planned[1]

    def agreed_to_leave(self) -> None:
        """All ranks end at the next boundary."""
        super().ask_to_leave("interrupted", self.wishes_to_leave or "SIGTERM")

    def ask_to_leave(self, note: str, reason: str) -> None:
        if note == "interrupted":
            self.wishes_to_leave = reason
        else:
            super().ask_to_leave(note, reason)

    @property
    def is_leaving(self) -> bool:
        return bool(self.wishes_to_leave) or super().is_leaving

    def plan(self, step: float, time: float, saving_time: float | None = None) -> None:
        self._planned = (step, time)
        super().plan(math.inf, math.inf)


_NUMBERS = struct.Struct("<qqQQQQ7d")
_FLAGS = (
    "loss_seen",
    "grad_norm_seen",
    "scaler_skipped",
    "others_trained",
    "begins_training",
    "announced",
    "in_environment",
)
_LEAVES = 1 << 63
_STEP_IS_BEGUN = 1 << 62
_SNAPSHOTS_AT, _MOST_SNAPSHOTS = 56, 63
"""Below these two bits, six for a number."""
_FLAGS_OF = tuple(
    {name: bool(flags >> bit & 1) for bit, name in enumerate(_FLAGS)}
    for flags in range(1 << len(_FLAGS))
)


@dataclass(slots=True, kw_only=True)
class StepMessage:
    """One rank's part of an agreement. Nobody changes one; frozen, it would be dearer to make.

    Attributes:
        record: as this rank has seen the step.
        due: one bit for each listener whose clock says that the next boundary is its turn.
        leaves: somebody wants this rank to end.
        step_is_begun: see `Progress`.
        decided: digest of all that was decided and done until the step before.
        exchanged: `Exchanges.balance` at the boundary behind which the step began.
        snapshots: for how many this rank has room.
    """

    record: StepRecord
    due: int = 0
    leaves: bool = False
    step_is_begun: bool = False
    decided: int = 0
    exchanged: int = 0
    snapshots: int = 0

    def pack(self, max_bytes: int) -> bytes:
        """Returns it as bytes; observed values that do not fit into `max_bytes` are left out."""
        record = self.record
        flags = (
            record.loss_seen
            | record.grad_norm_seen << 1
            | record.scaler_skipped << 2
            | record.others_trained << 3
            | record.begins_training << 4
            | record.announced << 5
            | record.in_environment << 6
        )
        numbers = _NUMBERS.pack(
            record.step,
            record.batch_size,
            flags,
            self.due
            | (_LEAVES if self.leaves else 0)
            | (_STEP_IS_BEGUN if self.step_is_begun else 0)
            | min(self.snapshots, _MOST_SNAPSHOTS) << _SNAPSHOTS_AT,
            self.decided,
            self.exchanged,
            record.loss,
            record.grad_norm,
            record.lr,
            record.loss_scale,
            record.step_time_s,
            record.memory_gib,
            record.clips_at,
        )
        if not record.observed:
            return numbers
        observed = json.dumps(dict(record.observed)).encode()
        return numbers + observed if len(numbers) + len(observed) <= max_bytes else numbers

    @classmethod
    def unpack(cls, data: bytes) -> StepMessage:
        """Returns what `pack` made these bytes of.

        Raises:
            ValueError: they are something else.
        """
        if len(data) < _NUMBERS.size:
            raise ValueError(f"{len(data)} bytes are no message of a step")
        step, batch_size, flags, due, decided, exchanged, *values = _NUMBERS.unpack_from(data)
        loss, grad_norm, lr, loss_scale, step_time_s, memory_gib, clips_at = values
        observed = data[_NUMBERS.size :]
        record = StepRecord(
            step=step,
            loss=loss,
            grad_norm=grad_norm,
            lr=lr,
            loss_scale=loss_scale,
            step_time_s=step_time_s,
            batch_size=batch_size,
            memory_gib=memory_gib,
            clips_at=clips_at,
            observed=json.loads(observed) if observed else {},
            **_FLAGS_OF[flags & len(_FLAGS_OF) - 1],
        )
        return cls(
            record=record,
            due=due & (1 << _SNAPSHOTS_AT) - 1,
            leaves=bool(due & _LEAVES),
            step_is_begun=bool(due & _STEP_IS_BEGUN),
            decided=decided,
            exchanged=exchanged,
            snapshots=due >> _SNAPSHOTS_AT & _MOST_SNAPSHOTS,
        )


def is_same_step(before: bytes, now: bytes) -> bool:
    """Whether two messages of a rank tell of the same step, with the same loss, norm and decisions;
    times may differ."""
    if before == now:
        return True
    try:
        both = StepMessage.unpack(before), StepMessage.unpack(now)
    except ValueError:
        return False
    first, second = ((m.record, m.decided, m.exchanged) for m in both)
    figures = [
        (r.step, repr(r.loss), repr(r.grad_norm), repr(r.lr), decided, exchanged)
        for r, decided, exchanged in (first, second)
    ]
    return figures[0] == figures[1]


LOOKS_EACH_UNTIL = 64
LOOKS_EVERY = 16
"""Whether all ranks stand at one place, and no step is begun before its forward, is asked at each
of the first steps, then at every so many and where something is to be done at the boundary."""
ARRIVES_WITHIN_S = 3600.0
"""For the slowest rank's replay; ranks replay the same steps, but not at the same speed."""
LONGEST_REASON = 600
"""In characters; as JSON it fits into a message of any rank."""


class Agreement:
    """Of a training in one process: its record is the group's.

    Attributes:
        is_alone: there is no other rank.
    """

    is_alone = True

    def group_record(self, record: StepRecord) -> StepRecord | None:
        """Called once for each step, before its update, or as soon after it as it can be judged.

        Args:
            record: as this rank has seen the step.

        Returns:
            The record that all ranks judge; None once they do not agree on steps any more.
        """
        return record

    def arrived(self, step: int, reasons: list[str], *, done: int) -> list[str]:
        """Called when a resume has put its state back, before it says how exact it is.

        Args:
            step: of the checkpoint.
            done: steps that the script's loop has made in its replay.
            reasons: why this rank's resume is not exact; empty if it is.

        Returns:
            Why the training's resume is not exact: that of one rank is that of all.

        Raises:
            ReplayError: another rank has not come to this step, or its loop stands elsewhere.
        """
        return reasons

    def decided(self, *what: object) -> None:
        """Something was decided or done that all ranks have to decide or do alike."""

    def tell(self, number: int) -> list[int]:
        """Returns what all ranks told of the same call, in their order; must be called on all. One
        -1 alone if that is not known, and nothing is agreed from then on."""
        return [number]

    def stop(self) -> None:
        """This rank takes part no more."""

    def standing(self) -> dict[str, int]:
        """Returns how far this rank has come, as values of JSON: for one that takes its place."""
        return {}

    def stand_at(self, standing: Mapping[str, int]) -> None:
        """This rank takes the place of one that stood there."""


class GroupAgreement(Agreement):
    """Ranks tell each other each step (`Mailbox`), and what follows comes from what all told.

    With the record go: which listeners' clocks say that it is time (the first rank's count),
    whether somebody wants this rank to end, whether a part of the step was computed before its
    first forward, what was exchanged before it, for how many snapshots there is room, and a digest
    of what was decided so far. Where a
    step is begun, or the ranks are not at the same place, all have their boundaries at updates from
    then on. If the digests differ the training has split, and all begin again from their last
    common checkpoint.

    Args:
        waiting: knows of ranks that cannot come to this one's update.
        memory: of which all ranks must take alike.
        on_lost: called once if a rank does not answer, and from then on nothing is agreed.
        on_split: called with the step if ranks have decided differently.
    """

    is_alone = False

    def __init__(
        self,
        mailbox: Mailbox,
        schedule: GroupSchedule,
        turns: GroupTurns,
        progress: Progress,
        waiting: WaitingRanks,
        memory: HeldMemory,
        *,
        on_lost: Callable[[], None],
        on_split: Callable[[int], None],
    ) -> None:
        self._mailbox = mailbox
        self._schedule = schedule
        self._turns = turns
        self._progress = progress
        self._exchanges = waiting.exchanges
        self._waiting = waiting
        self._memory = memory
        self._rank = mailbox.rank
        self._on_lost = on_lost
        self._on_split = on_split
        self._is_on = True
        self._decided = 0

    def group_record(self, record: StepRecord) -> StepRecord | None:
        if not self._is_on:
            return None
        boundary = record.step + 1
        looks = self._rank == FIRST_RANK and self._schedule.is_due(boundary)
        own = StepMessage(
            record=record,
            due=(self._turns.due(boundary) << 1 | 1) if looks else 0,
            leaves=bool(self._schedule.wishes_to_leave),
            step_is_begun=self._progress.step_is_begun,
            decided=self._decided,
            exchanged=self._exchanges.at_forward,
            snapshots=self._memory.offered,
        )
        self._waiting.start()
        packed = own.pack(self._mailbox.max_bytes)
        told = self._mailbox.exchange(packed, is_in_vain=self._waiting.is_in_vain)
        messages = self._messages(own, packed, told or [])
        if not messages:
            self._lose()
            return None
        due, exchanged, is_split, leaves, is_begun = messages[0].due, 0, False, False, False
        snapshots = messages[0].snapshots
        for message in messages:
            exchanged += message.exchanged
            snapshots = min(snapshots, message.snapshots)
            is_split = is_split or message.decided != messages[0].decided
            leaves = leaves or message.leaves
            is_begun = is_begun or message.step_is_begun
        self._memory.agreed = snapshots
        is_asked = boundary < LOOKS_EACH_UNTIL or not boundary % LOOKS_EVERY
        self._exchanges.are_asked = bool(due) or is_asked
        self._turns.grant(due >> 1)
        if due:
            self._schedule.ask()
        if is_split:
            self._on_split(record.step)
        if leaves:
            self._schedule.agreed_to_leave()
        if is_begun or not is_same_place((exchanged,)):
            self._progress.boundaries_at_updates()
        return agree([message.record for message in messages])

    def _messages(self, own: StepMessage, packed: bytes, told: list[bytes]) -> list[StepMessage]:
        """Of all ranks; none where not all tell of this step. A rank that takes a dead one's place
        has told what that one told, not its own."""
        messages = []
        for rank, data in enumerate(told):
            try:
                is_own = rank == self._rank and data == packed
                message = own if is_own else StepMessage.unpack(data)
            except ValueError:  # another rank is at another point
                return []
            if message.record.step != own.record.step:
                return []
            messages.append(message)
        return messages

    def standing(self) -> dict[str, int]:
        count = self._mailbox.count if isinstance(self._mailbox, StepMailbox) else 0
        return {"count": count, "decided": self._decided}

    def stand_at(self, standing: Mapping[str, int]) -> None:
        if isinstance(self._mailbox, StepMailbox):
            self._mailbox.skip_to(standing["count"])
        self._decided = standing["decided"]

    def arrived(self, step: int, reasons: list[str], *, done: int) -> list[str]:
        if takes_dead_ranks_place():  # the others have not moved
            if reasons:
                raise ReplayError(f"a rank can come back alone only exactly: {'; '.join(reasons)}")
            return reasons
        own = json.dumps([step, "; ".join(reasons)[:LONGEST_REASON], done]).encode()
        told = self._mailbox.exchange(own, ARRIVES_WITHIN_S)
        try:
            places = [json.loads(data) for data in told or ()]
            if not places or any(int(place[0]) != step or len(place) < 3 for place in places):
                raise ValueError("another rank stands elsewhere")
        except (ValueError, TypeError, LookupError) as error:
            self._mailbox.leave()
            raise ReplayError("the other ranks have not arrived at this step") from error
        if len({place[2] for place in places}) > 1:  # one would be done before the others
            self._mailbox.leave()
            why = next((f" ({place[1]})" for place in places if place[1]), "")
            raise ReplayError(f"the ranks do not stand at the same step of their loops{why}")
        others = [
            f"rank {rank}: {place[1]}"
            for rank, place in enumerate(places)
            if place[1] and rank != self._rank
        ]
        return [*reasons, *others]

    def _lose(self) -> None:
        """From here on nothing is agreed."""
        self._is_on = False
        self._mailbox.leave()
        self._on_lost()

    def tell(self, number: int) -> list[int]:
        if not self._is_on:
            return [number]
        told = self._mailbox.exchange(json.dumps({"told": number}).encode())
        try:
            return [int(json.loads(data)["told"]) for data in told or ()] or [-1]
        except (ValueError, TypeError, LookupError):  # another rank is at another point
            self._lose()
            return [-1]

    def decided(self, *what: object) -> None:
        self._decided = xxhash.xxh3_64_intdigest(repr(what).encode(), seed=self._decided)

    def stop(self) -> None:
        self._mailbox.leave()
