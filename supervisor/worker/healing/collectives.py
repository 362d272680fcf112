"""The script's collectives: made and kept while all ranks live, answered while this one catches up.

Each is made at once and waited for, so a rank has one under way at most. If it fails because a rank
died, whoever lives waits within it; a buffer that was half reduced gets back what this rank gave.
Ranks can be apart by what they have completed: those ahead make earlier ones again for the others.
What all got alike is kept in parts, one a rank: who comes back reads the logs of all.
"""

from __future__ import annotations

import enum
import marshal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from supervisor.storage.run.healing_memory import BEGINNING, HealingMailbox
from supervisor.worker.core.call_state import CallState
from supervisor.worker.core.process_signs import SHORT, ExitRequest
from supervisor.worker.healing.collectives_log import (
    CollectivesLog,
    Entry,
    checksum_of,
    fill_from_bytes,
)
from supervisor.worker.healing.functional import bypassed
from supervisor.worker.healing.links import Gloo, Links, is_agents_store
from supervisor.worker.healing.operations import NAMESPACE, Call, Keeps, fill

FIRST_STEPS = 3
"""What they exchange stays: a replay executes the first step, and DDP arranges its buckets in the
forward after it."""
MOST_COST = 0.02
"""Of the training's time, with ``restart.healing: auto``."""
MEASURED_STEPS = 20
"""After which that is judged."""
_SENDS = ("send", "recv_", "recv_any_source_")
_PROCESSOR = torch.device("cpu")
_OWN, _ALL = 1, 2
"""Signatures of messages; no operation has these."""


class Mode(enum.Enum):
    """Who gives the result of a collective.

    MADE: it is made with the other ranks.
    REPLAYED: this process is on its way to its rank's state, which only the log of the beginning
        can answer.
    ANSWERED: it trains what its rank had trained, with the log since that state.
    """

    MADE = "made"
    REPLAYED = "replayed"
    ANSWERED = "answered"


@dataclass(slots=True)
class _Kept:
    """A collective that another rank may not have completed.

    Attributes:
        group, number: which one.
        order: of those of all groups.
        signature, checksum: of the call, and of what this rank gave.
        gave: that; a copy only where the operation itself changes it.
    """

    group: str
    number: int
    order: int
    call: Call
    signature: int
    checksum: int
    gave: Sequence[torch.Tensor]

    @property
    def is_whole(self) -> bool:
        """Whether `gave` is what it was."""
        is_there = all(tensor.untyped_storage().nbytes() for tensor in self.gave if tensor.nbytes)
        return is_there and checksum_of(self.gave) == self.checksum


class Collectives:
    """One a process.

    Args:
        mailbox: of all ranks.
        logs_of: maps those of a rank, in the parent's memory.
        rank, world_size: of this process.
        call_state: what happens here is not the script's.
        heals: this process takes the place of one that died.
        steps_done: returns the steps of the training so far.
        most_cost: share of the time above which healing is given up; None for no limit.

    Attributes:
        mode: see `Mode`.
        called: group → collectives that this rank has called.
        completed: those of them that are over.
        answers: how many collectives and messages the log has answered.
        objection: why no rank can come back alone in this attempt; empty if one can.
        on_met: called when all ranks have come together again.
    """

    def __init__(
        self,
        mailbox: HealingMailbox,
        logs_of: Callable[[int], Sequence[CollectivesLog]],
        rank: int,
        world_size: int,
        call_state: CallState,
        *,
        heals: bool,
        steps_done: Callable[[], int] = lambda: 0,
        most_cost: float | None = None,
    ) -> None:
        self.mode = Mode.REPLAYED if heals else Mode.MADE
        self.called: dict[str, int] = {}
        self.completed: dict[str, int] = {}
        self.answers = 0
        self.on_met: list[Callable[[], None]] = []
        self._mailbox = mailbox
        self._logs_of = logs_of
        self._logs = logs_of(rank)
        self._links = Links(mailbox, rank, world_size)
        self._rank = rank
        self._call_state = call_state
        self._heals = heals
        self._steps_done = steps_done
        self._kept: dict[str, list[_Kept]] = {}
        self._pieces: dict[int, dict[tuple[int, int], memoryview]] = {}
        self._section: CollectivesLog | None = None
        self._entries: list[Entry] = []
        self._at = 0
        self._trains = False
        self.objection = ""
        self._writing = threading.Lock()
        self._most_cost = most_cost
        self._cost_s = 0.0
        self._measured_from: tuple[int, float] | None = None
        beginning = self._logs[BEGINNING]
        if heals:
            self._entries = list(beginning.entries())
        else:
            beginning.start(0)

    def start(self) -> None:
        """From here on a rank may come back alone."""
        self._mailbox.takes_part(self._rank)

    def object_to(self, why: str) -> None:
        """None can any more in this attempt; the first reason is told."""
        if not self.objection:
            self.objection = why
            self._mailbox.object_to(self._rank, why)

    # --- what is kept ------------------------------------------------------------------------

    def training_starts(self) -> None:
        """What was exchanged before is the same in each replay."""
        self._trains = True
        c10d: Any = torch.distributed.distributed_c10d
        if torch.distributed.is_initialized() and not is_agents_store(c10d._get_default_store()):
            self.object_to("the ranks meet in a store of their own")

    @property
    def beginning_bytes(self) -> int:
        """Of what the ranks exchanged before their training."""
        return self._logs[BEGINNING].used

    def state_kept(self, place: int, step: int, most_bytes: int) -> None:
        """The rank's state of `step` is in this place of its memory: what comes after it is kept
        from here on, so many bytes at most."""
        if not self._heals:
            self._section = self._logs[place]
            self._section.start(step, most_bytes)

    def states_forgotten(self) -> None:
        """There is no such state any more."""
        self._section = None
        for log in self._logs[:BEGINNING]:
            log.stop()

    @property
    def wants_state(self) -> bool:
        """Whether the log since the newest state has less than half of its room left."""
        return self._section is not None and self._section.is_half_full

    def _log(self, kept: _Kept) -> None:
        call, what = kept.call, (kept.signature, kept.number, kept.checksum)
        with self._writing:
            if self._is_beginning and not self._logs[BEGINNING].append(*what, call.gets):
                self.object_to("what the ranks exchange before their training is too much")
            if self._section is not None:
                self._section.append(*what, *call.share())

    def _log_message(self, kind: int, message: bytes) -> None:
        with self._writing:
            if self._section is not None:
                self._section.append_message(kind, message)

    @property
    def _is_beginning(self) -> bool:
        return self._call_state.replaying or self._steps_done() < FIRST_STEPS

    # --- collectives -------------------------------------------------------------------------

    def handle(self, call: Call) -> Any:
        """Returns what torch's own operation would.

        Raises:
            RuntimeError: it failed, and no rank comes back.
            ExitRequest: this process does not come to where its rank was.
        """
        group = call.group
        if group.size() == 1 or not _is_gloo(group):
            return call.make(group)
        self._call_state.depth += 1
        try:
            return self._handle(call, group, group.group_name)
        finally:
            self._call_state.depth -= 1

    def _handle(self, call: Call, group: Any, name: str) -> Any:
        if call.name not in _SENDS:
            self.called[name] = self.called.get(name, 0) + 1
        if bypassed(group):
            self.object_to("collectives within torch.inference_mode, or of a kind that is not kept")
        if call.operation is None or not call.is_plain:
            return self._passed_on(call, group)
        began_s, made_s = time.perf_counter(), 0.0
        number, checksum = self.completed.get(name, 0) + 1, checksum_of(call.gives)
        gave = [each.detach().clone() for each in call.gives] if call.is_in_place else call.gives
        order = sum(self.completed.values())
        kept = _Kept(name, number, order, call, call.signature(name), checksum, gave)
        if self.mode is Mode.REPLAYED:
            self._replay(kept)
        else:
            if self.mode is not Mode.ANSWERED or not self._answer(kept):
                made_s = self._make(kept)
                self._log(kept)
            # All have entered one that is of all, so they have completed those before.
            before = [] if call.operation.is_of_all else self._kept.get(name, [])
            self._kept[name] = [*before, kept]
        self.completed[name] = number
        self._cost_s += time.perf_counter() - began_s - made_s
        return call.ended()

    def _passed_on(self, call: Call, group: Any) -> Any:
        what = f"{NAMESPACE}.{call.name.rstrip('_')}"
        if self.mode is not Mode.MADE:
            self.fail(f"{what} cannot be answered")
        self.object_to(f"{what} is used, whose results are not kept")
        return call.make(group)

    def _make(self, kept: _Kept) -> float:
        """Returns the seconds that it took."""
        began_s = time.perf_counter()
        while True:
            self.come_together()
            failure = self._tried(kept)
            if failure is None:
                return time.perf_counter() - began_s
            self._links.drop()  # nothing that holds the failed one may live
            if not self._links.await_word():
                raise failure
            if not kept.is_whole:
                self.fail("a collective that failed has changed what it was given")
            if kept.call.is_in_place:
                fill(kept.call.gives, kept.gave)

    def _tried(self, kept: _Kept) -> RuntimeError | None:
        try:
            kept.call.make(self._links.of(kept.call.group, kept.group))
        except RuntimeError as error:
            return type(error)(str(error))
        return None

    # --- coming together again ---------------------------------------------------------------

    def come_together(self) -> None:
        """Returns at once while no rank has died; else when all are there."""
        if self._links.is_outdated:
            self._make_again(self._links.wait_together(self.completed))

    def look(self) -> bool:
        """Called again and again while this rank waits for a message of another. Returns whether
        that one may still catch up."""
        if self._links.is_outdated:
            there = self._links.come_together(self.completed)
            if there is not None:
                self._make_again(there)
        return self._mailbox.is_waiting

    def _make_again(self, there: Mapping[int, Mapping[str, int]]) -> None:
        again: list[_Kept] = []
        for name, all_kept in self._kept.items():
            members = torch.distributed.get_process_group_ranks(all_kept[0].call.group)
            lowest = min(there[rank].get(name, 0) for rank in members)
            lacking = [kept for kept in all_kept if kept.number > lowest]
            if len(lacking) < self.completed[name] - lowest or not all(k.is_whole for k in lacking):
                self.fail("another rank lacks a collective whose values are gone")
            again += lacking
        for kept in sorted(again, key=lambda kept: kept.order):
            connected = self._links.of(kept.call.group, kept.group)
            kept.call.again(kept.gave).make(connected)
        for tell in self.on_met:
            tell()

    # --- answers -----------------------------------------------------------------------------

    @property
    def repeats(self) -> bool:
        """Whether there are answers left."""
        return self.mode is Mode.ANSWERED and self._at < len(self._entries)

    def tell_caught_up(self) -> None:
        """All ranks are together again."""
        self._heals = False
        self._mailbox.caught_up(self._rank, self.answers)

    @property
    def is_catching_up(self) -> bool:
        """Whether this process does again what its rank had done."""
        return self._heals

    def catch_up(self, step: int, called: Mapping[str, int]) -> None:
        """This rank's state is put back: what its log holds since then is answered from here on.

        Args:
            step: of that state.
            called: group → collectives that the rank had called at that state.
        """
        section = next((log for log in self._logs[:BEGINNING] if log.step == step), None)
        if section is None:
            self.fail(f"nothing was kept after step {step}")
        self.mode = Mode.ANSWERED
        self._section, self._entries, self._at = section, list(section.entries()), 0
        for counts in (self.called, self.completed):  # others hold `called`
            counts.clear()
            counts.update(called)

    def fail(self, why: str) -> NoReturn:
        """Ends this process, and with it all: it is not what its rank was.

        Raises:
            ExitRequest: always.
        """
        self._mailbox.object_to(self._rank, why)
        self._mailbox.decline()
        raise ExitRequest(SHORT, f"the rank could not come back alone: {why}")

    def _replay(self, kept: _Kept) -> None:
        """What a replay executes of the training needs the right shapes only, but what DDP agrees
        on; before the training all must be right."""
        log, entries, call = self._logs[BEGINNING], self._entries, kept.call
        for exactly in (True, False):
            for at in range(self._at, len(entries)):
                entry = entries[at]
                is_same = entry.signature == kept.signature
                if is_same and (entry.checksum == kept.checksum or not exactly):
                    fill_from_bytes(call.gets, log.bytes_of(entry))
                    self._at = at + 1
                    self.answers += 1
                    return
        if not self._trains:
            self.fail("it exchanges something before its training that it had not before")
        if not call.is_in_place:
            for tensor in call.gets:
                tensor.detach().zero_()

    def _answer(self, kept: _Kept) -> bool:
        """Returns whether the logs had its result."""
        entry, section = self._next_entry(), self._section
        if entry is None or section is None:
            return False
        if (entry.signature, entry.checksum) != (kept.signature, kept.checksum):
            self.fail("what it gives to a collective is not what its rank gave")
        pieces = self._pieces_of(kept, section.bytes_of(entry))
        if pieces is not None and fill_from_bytes(kept.call.gets, b"".join(pieces)):
            return True
        if self._at < len(self._entries):
            self.fail("another rank has not kept its part of a collective")
        section.cut(entry)  # another has not completed it: this is the one that failed
        self.answers -= 1
        self._ends_answers()
        return False

    def _pieces_of(self, kept: _Kept, own: memoryview) -> list[memoryview] | None:
        """Returns what the ranks have kept of it, in their order; None if one has nothing."""
        operation, wanted = kept.call.operation, (kept.signature, kept.number)
        if operation is None or operation.keeps is Keeps.ALL:
            return [own]
        found = []
        for rank in torch.distributed.get_process_group_ranks(kept.call.group):
            if rank not in self._pieces:
                self._pieces[rank] = {
                    (entry.signature, entry.number): log.bytes_of(entry)
                    for log in self._logs_of(rank)[:BEGINNING]
                    for entry in log.entries()
                }
            piece = own if rank == self._rank else self._pieces[rank].get(wanted)
            if piece is None:
                return None
            found.append(piece)
        return found

    def _next_entry(self) -> Entry | None:
        if self._at >= len(self._entries):
            self._ends_answers()
            return None
        entry = self._entries[self._at]
        self._at += 1
        self.answers += 1
        return entry

    def _ends_answers(self) -> None:
        self.mode = Mode.MADE
        self._entries, self._pieces = [], {}

    # --- messages ----------------------------------------------------------------------------

    def recorded_message(
        self, message: bytes, is_same: Callable[[bytes, bytes], bool]
    ) -> tuple[bytes, list[bytes] | None]:
        """Returns what this rank has told and what all told then, before a message goes out; the
        given one and None where nothing is recorded.

        Args:
            message: that it tells now.
            is_same: whether two of its messages tell of the same training.
        """
        section, entry = self._section, None
        if self.mode is Mode.ANSWERED:
            entry = self._next_entry()
        if entry is None or section is None:
            self._log_message(_OWN, message)
            return message, None
        own = bytes(section.bytes_of(entry))
        if entry.signature != _OWN or not is_same(own, message):
            self.fail("its step is not what its rank had recorded")
        following = self._next_entry()
        if following is None:
            return own, None
        if following.signature != _ALL:
            self.fail("its log is damaged")
        return own, list(marshal.loads(section.bytes_of(following)))

    def message_ended(self, told: Sequence[bytes]) -> None:
        """All ranks have told this one something."""
        self._log_message(_ALL, marshal.dumps(list(told)))

    # --- cost --------------------------------------------------------------------------------

    @property
    def is_measured(self) -> bool:
        """Whether `boundary` has something to do."""
        return self._most_cost is not None and not self.objection

    def boundary(self, step: int, now_s: float) -> None:
        """Called between steps: gives healing up where it costs more than it may."""
        if self._most_cost is None or self.mode is not Mode.MADE:
            return
        if self._measured_from is None:
            self._measured_from, self._cost_s = (step, now_s), 0.0
            return
        first, since_s = self._measured_from
        if step - first < MEASURED_STEPS:
            return
        share = self._cost_s / max(now_s - since_s, 1e-9)
        if share > self._most_cost:
            self.object_to(f"it would cost {share:.1%} of the time")
            self._most_cost = None
        else:
            self._measured_from, self._cost_s = (step, now_s), 0.0


def _is_gloo(group: Any) -> bool:
    return isinstance(group._get_backend(_PROCESSOR), Gloo.own)
