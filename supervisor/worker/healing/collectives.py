"""The script's collectives: made and kept while all ranks live, answered while this one catches up.

Each goes on beside the training until the script waits for it, as without us; what it gave is
copied when it ends, before the script has it. If it fails because a rank died, whoever waits for it
goes on waiting; a buffer that was half reduced gets back what this rank gave. Ranks can be apart by
what they have completed: those ahead make earlier ones again for the others.
"""

from __future__ import annotations

import enum
import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
import xxhash

from supervisor.storage.run.healing_memory import BEGINNING, COUNTS, HealingMailbox
from supervisor.worker.core.call_state import CallState
from supervisor.worker.core.process_signs import SHORT, ExitRequest
from supervisor.worker.healing.collectives_log import (
    MOST_BYTES,
    CollectivesLog,
    Entry,
    checksum_of,
    copy_in,
    copy_out,
)
from supervisor.worker.healing.links import Broken, Links, is_agents_store, is_gloo
from supervisor.worker.healing.operations import LARGE, NAMESPACE, Call

FIRST_STEPS = 3
"""What they exchange stays: a replay executes the first step, and DDP arranges its buckets in the
forward after it."""
MOST_COST = 0.02
"""Of the training's time, with ``restart.healing: auto``."""
MEASURED_STEPS = 100
"""After which that is judged, once each log was used before: new memory costs more."""
_SENDS = ("send", "recv_", "recv_any_source_")
_OWN, _ALL = 1, 2
"""Signatures of messages; no operation has these."""
_LOOK_S = 0.001


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


@dataclass(frozen=True, slots=True)
class _Group:
    """Attributes:
    place: of its count in the mailbox.
    """

    name: str
    place: int
    members: tuple[int, ...]


@dataclass(slots=True, eq=False)
class _Kept:
    """A collective that another rank may not have completed, or a message.

    Attributes:
        number: in its group.
        gave: what this rank gave, in bytes; None if it is still there, with this checksum.
        got: what is copied when it ends.
        rooms: where to.
        error: by which it failed, until it is made again.
        answer: what the script waits for; None if it waits for the operation itself.
    """

    group: _Group | None = None
    number: int = 0
    call: Call | None = None
    signature: int = 0
    checksum: int = 0
    gave: torch.Tensor | None = None
    got: list[torch.Tensor] = field(default_factory=list)
    own: torch.Tensor | None = None
    length: int = 0
    rooms: list[tuple[CollectivesLog, int]] = field(default_factory=list)
    is_done: bool = False
    error: RuntimeError | None = None
    answer: Any = None


class Collectives:
    """One a process.

    Args:
        mailbox, logs: of this rank, in the parent's memory.
        rank, world_size: of this process.
        call_state: what happens here is not the script's.
        heals: this process takes the place of one that died.
        steps_done: returns the steps of the training so far.
        most_cost: share of the time above which healing is given up; None for no limit.
        tell: called with a reason once no rank can come back alone any more.

    Attributes:
        mode: see `Mode`.
        called: group → collectives that this rank has called.
        completed: those of them that are over.
        answers: how many collectives and messages the log has answered.
        on_met: called when all ranks have come together again.
    """

    def __init__(
        self,
        mailbox: HealingMailbox,
        logs: Sequence[CollectivesLog],
        rank: int,
        world_size: int,
        call_state: CallState,
        *,
        heals: bool,
        steps_done: Callable[[], int] = lambda: 0,
        most_cost: float | None = None,
        tell: Callable[[str], None] = lambda why: None,
    ) -> None:
        self.mode = Mode.REPLAYED if heals else Mode.MADE
        self.called: dict[str, int] = {}
        self.completed: dict[str, int] = {}
        self.answers = 0
        self.on_met: list[Callable[[], None]] = []
        self._mailbox = mailbox
        self._logs = logs
        self._links = Links(mailbox, rank, world_size)
        self._rank = rank
        self._call_state = call_state
        self._heals = heals
        self._steps_done = steps_done
        self._tell = tell
        self._groups: dict[str, _Group] = {}
        self._kept: deque[_Kept] = deque()
        self._open: deque[_Kept] = deque()
        self._buffers: dict[int, list[torch.Tensor]] = {}
        self._section: CollectivesLog | None = None
        self._entries: list[Entry] = []
        self._at = 0
        self._trains = self._has_met = False
        self._objected = ""
        self._writing, self._mending = threading.Lock(), threading.RLock()
        self._most_cost = most_cost
        self._states = 0
        self._cost_s = 0.0
        self._measured_from: tuple[int, float] | None = None
        beginning = logs[BEGINNING]
        if heals:
            self._entries = list(beginning.entries())
        else:
            beginning.start(0)

    def start(self) -> None:
        """From here on a rank may come back alone."""
        self._mailbox.takes_part(self._rank)

    def object_to(self, why: str) -> None:
        """None can any more in this attempt; the first reason is told, and nothing is kept."""
        if not self._objected:
            self._objected = why
            self._mailbox.object_to(self._rank, why)
            self._tell(why)

    @property
    def has_objected(self) -> bool:
        """Whether this rank has said that none can come back alone."""
        return bool(self._objected)

    # --- what is kept ------------------------------------------------------------------------

    def training_starts(self) -> None:
        """What was exchanged before is the same in each replay."""
        self._trains = True
        c10d: Any = torch.distributed.distributed_c10d
        if torch.distributed.is_initialized() and not is_agents_store(c10d._get_default_store()):
            self.object_to("the ranks meet in a store of their own")

    def state_kept(self, place: int, step: int, most_bytes: int = MOST_BYTES) -> None:
        """The rank's state of `step` is in this place of its memory: what comes after it is kept
        from here on, up to so many bytes. Nothing is where a collective is still under way."""
        if self._heals:
            return
        self._states += 1
        with self._writing:
            log = self._logs[place]
            if self._open:
                self._section = None
                log.stop()
            else:
                self._section = log
                log.start(step, most_bytes)

    def states_forgotten(self) -> None:
        """There is no such state any more."""
        self._section = None
        for log in self._logs[:BEGINNING]:
            log.stop()

    @property
    def wants_state(self) -> bool:
        """Whether the log since the newest state has little room left."""
        return self._section is not None and self._section.is_nearly_full and not self._objected

    @property
    def beginning_bytes(self) -> int:
        """What was kept of the beginning."""
        return self._logs[BEGINNING].used

    def _begun(self, call: Call, name: str) -> _Kept:
        """Copies what this rank gives, and takes room for what it will get."""
        kept = _Kept(self._group(call, name), self.called[name], call, call.signature(name))
        gives = call.gives
        size = sum([tensor.nbytes for tensor in gives])
        if call.is_in_place or size < LARGE:
            free = self._buffers.get(size)
            kept.gave = free.pop() if free else torch.empty(size, dtype=torch.uint8)
            copy_out(gives, kept.gave.data_ptr())
            kept.checksum = checksum_of((kept.gave,))
        else:
            kept.checksum = checksum_of(gives)
        kept.got, kept.own = call.split()
        kept.length = sum([tensor.nbytes for tensor in kept.got])
        return kept

    def _group(self, call: Call, name: str) -> _Group:
        found = self._groups.get(name)
        if found is None:
            number = int(name) if name.isdigit() else xxhash.xxh3_64_intdigest(name.encode())
            place = number % COUNTS
            if any(place == other.place for other in self._groups.values()):
                self.object_to("there are too many groups")
            members = tuple(torch.distributed.get_process_group_ranks(call.group))
            found = self._groups[name] = _Group(name, place, members)
        return found

    def _take_room(self, kept: _Kept) -> None:
        with self._writing:
            if (
                kept.call is not None
                and self._is_beginning
                and not self._reserve(kept, self._logs[BEGINNING])
            ):
                self.object_to("what the ranks exchange before their training is too much")
            if self._section is not None:
                self._reserve(kept, self._section)
            self._open.append(kept)

    def _reserve(self, kept: _Kept, log: CollectivesLog) -> bool:
        address = log.reserve(kept.signature, kept.checksum, kept.length)
        if address is not None:
            kept.rooms.append((log, address))
        return address is not None

    @property
    def _is_beginning(self) -> bool:
        return self._call_state.replaying or self._steps_done() < FIRST_STEPS

    def _completed(self, kept: _Kept) -> None:
        """Its result is there; it counts when those before it have ended, too."""
        for _, address in kept.rooms:
            copy_out(kept.got, address)
        with self._writing:
            kept.is_done = True
            while self._open and self._open[0].is_done:
                first = self._open.popleft()
                for log, address in first.rooms:
                    log.commit(address, first.length)
                if (group := first.group) is not None:
                    self.completed[group.name] = first.number
                    self._mailbox.completes(self._rank, group.place, first.number)

    def _forget_passed(self) -> None:
        """What all ranks of a group have completed is needed by none."""
        kept = self._kept
        while kept and kept[0].is_done:
            group = kept[0].group
            assert group is not None
            if self._mailbox.passed(group.members, group.place) < kept[0].number:
                return
            gave = kept.popleft().gave
            if gave is not None:
                self._buffers.setdefault(gave.numel(), []).append(gave)

    # --- collectives -------------------------------------------------------------------------

    def handle(self, call: Call) -> Any:
        """Returns what torch's own operation would.

        Raises:
            RuntimeError: it failed, and no rank comes back.
            ExitRequest: this process does not come to where its rank was.
        """
        group = call.group
        if group.size() == 1 or not is_gloo(group):
            return call.make(call.boxed)
        with torch.no_grad():
            return self._handle(call, group, group.group_name)

    def _handle(self, call: Call, group: Any, name: str) -> Any:
        if call.name not in _SENDS:
            self.called[name] = self.called.get(name, 0) + 1
        if not call.operation.is_kept or not call.is_plain:
            return self._passed_on(call)
        if self._objected and self.mode is Mode.MADE:
            return call.make(self._links.of(group, name))
        began_s = time.perf_counter()
        if self.mode is not Mode.MADE:
            with self._call_state.region():
                kept = self._begun(call, name)
                if self.mode is Mode.REPLAYED:
                    self._replay(call, kept)
                    return call.ended()
                if self._answer(kept):
                    return call.ended()
        self.come_together()
        with self._mending:
            kept = self._begun(call, name)
            self._take_room(kept)
            self._forget_passed()
            self._kept.append(kept)
            self._cost_s += time.perf_counter() - began_s
            made = self._tried(kept, group, name)
        if kept.answer is not None:
            return call.ended(kept.answer)
        return self._waited_for(kept, made)

    def _passed_on(self, call: Call) -> Any:
        what = f"{NAMESPACE}.{call.name.rstrip('_')}"
        if self.mode is not Mode.MADE:
            self.fail(f"{what} cannot be answered")
        self.object_to(f"{what} is used, whose results are not kept")
        return call.make(call.boxed)

    def _tried(self, kept: _Kept, group: Any, name: str) -> Any:
        """Begins it; returns what torch returned."""
        call = kept.call
        assert call is not None
        try:
            made = call.make(self._links.of(group, name))
        except RuntimeError as error:
            kept.error = type(error)(str(error))
            return None
        if not call.is_waited_for:
            kept.answer = torch.futures.Future()
            future = call.work_of(made).get_future()
            future.add_done_callback(functools.partial(self._ended, kept))
        return made

    def _waited_for(self, kept: _Kept, made: Any) -> Any:
        call = kept.call
        assert call is not None
        if made is not None:
            try:
                call.work_of(made).wait()
            except RuntimeError as error:
                kept.error = type(error)(str(error))
                made = None  # nothing that holds the failed one may live
            else:
                began_s = time.perf_counter()
                self._completed(kept)
                self._cost_s += time.perf_counter() - began_s
                return made
        self._mend()
        if kept.error is not None:
            raise kept.error
        return call.ended()

    def _ended(self, kept: _Kept, future: Any) -> None:
        """Called by gloo's own thread."""
        try:
            future.value()
        except RuntimeError as error:
            kept.error = type(error)(str(error))
            threading.Thread(target=self._mend_beside, daemon=True).start()
            return
        began_s = time.perf_counter()
        with torch.no_grad():
            self._completed(kept)
        self._cost_s += time.perf_counter() - began_s
        kept.answer.set_result(kept.call.gets)  # type: ignore[union-attr]

    # --- coming together again ---------------------------------------------------------------

    def come_together(self) -> None:
        """Returns at once while no rank has died; else when all are there."""
        if self._links.is_outdated:
            self._mend()
        if self._has_met:
            self._tell_met()

    def look(self) -> bool:
        """Called again and again while this rank waits for a message of another. Returns whether
        that one may still catch up."""
        if self._links.is_outdated:
            with self._mending, torch.no_grad():
                if not self._links.is_told:
                    self._settle()
                there = self._links.come_together(self.completed)
                if there is not None:
                    self._make_again(there)
        if self._has_met:
            self._tell_met()
        return self._mailbox.is_waiting

    def _mend_beside(self) -> None:
        """While the training waits for what has failed, or has not come to that yet."""
        try:
            self._mend()
        except Broken:
            return

    def _mend(self) -> None:
        """Makes again what has failed, once all ranks are there; what cannot be keeps its error.

        Raises:
            Broken: the parent ends all ranks instead.
        """
        with self._mending, torch.no_grad(), self._call_state.region():
            try:
                while self._links.is_outdated or any(kept.error for kept in self._kept):
                    self._settle()
                    if not self._links.is_outdated and not self._links.await_word():
                        return
                    self._make_again(self._links.wait_together(self.completed))
            finally:
                for kept in [kept for kept in self._kept if kept.error is not None]:
                    self._kept.remove(kept)
                    if kept.answer is not None:
                        kept.answer.set_exception(kept.error)

    def _settle(self) -> None:
        """Returns when nothing is under way any more."""
        self._links.close()
        while not all(kept.is_done or kept.error for kept in list(self._kept)):
            time.sleep(_LOOK_S)
        self._links.drop()

    def _make_again(self, there: Mapping[int, Mapping[str, int]]) -> None:
        """`there`: rank → group → how many it has completed."""
        for kept in list(self._kept):
            group, call = kept.group, kept.call
            assert group is not None
            assert call is not None
            has_failed = kept.error is not None
            if not has_failed and kept.number <= min(
                there[rank].get(group.name, 0) for rank in group.members
            ):
                continue
            if kept.gave is None and checksum_of(call.gives) != kept.checksum:
                self._mailbox.object_to(self._rank, "what it gave to a collective has changed")
                self._mailbox.decline()
                raise Broken("what this rank gave is gone")
            made = call if has_failed else call.again(fills=kept.gave is not None)
            if kept.gave is not None:
                copy_in(kept.gave.data_ptr(), made.gives)
            try:
                made.work_of(made.make(self._links.of(call.group, group.name))).wait()
            except RuntimeError:
                return  # another rank has died
            if has_failed:
                kept.error = None
                self._completed(kept)
                if kept.answer is not None:
                    kept.answer.set_result(call.gets)
        self._has_met = True
        if threading.get_ident() == self._call_state.thread:
            self._tell_met()

    def _tell_met(self) -> None:
        """Called by the training's own thread."""
        self._has_met = False
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

    def _replay(self, call: Call, kept: _Kept) -> None:
        """What a replay executes of the training needs the right shapes only, but what DDP agrees
        on; before the training all must be right."""
        log, entries = self._logs[BEGINNING], self._entries
        for exactly in (True, False):
            for at in range(self._at, len(entries)):
                entry = entries[at]
                is_same = entry.checksum == kept.checksum or not exactly
                if entry.signature == kept.signature and is_same:
                    self._fill(log, entry, kept)
                    self._at = at + 1
                    self.answers += 1
                    return
        if not self._trains:
            self.fail("it exchanges something before its training that it had not before")
        if not call.is_in_place:
            for tensor in call.gets:
                tensor.zero_()

    def _answer(self, kept: _Kept) -> bool:
        entry = self._next_entry()
        if entry is None:
            return False
        if (entry.signature, entry.checksum) != (kept.signature, kept.checksum):
            self.fail("what it gives to a collective is not what its rank gave")
        assert self._section is not None
        assert kept.group is not None
        self._fill(self._section, entry, kept)
        kept.is_done = True
        self._kept.append(kept)
        self._forget_passed()
        self.completed[kept.group.name] = kept.number
        return True

    def _fill(self, log: CollectivesLog, entry: Entry, kept: _Kept) -> None:
        log.fill(entry, kept.got)
        if kept.own is not None and kept.call is not None:
            kept.own.copy_(kept.call.gives[0].reshape(-1))

    def _next_entry(self) -> Entry | None:
        if self._at >= len(self._entries):
            self.mode = Mode.MADE
            self._entries = []
            return None
        entry = self._entries[self._at]
        self._at += 1
        self.answers += 1
        return entry

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
        if self._has_met:
            self._tell_met()
        section, entry = self._section, None
        if self.mode is Mode.ANSWERED:
            entry = self._next_entry()
        if entry is None or section is None:
            self._log(_OWN, message)
            return message, None
        own = section.read(entry)
        if entry.signature != _OWN or not is_same(own, message):
            self.fail("its step is not what its rank had recorded")
        following = self._next_entry()
        if following is None:
            return own, None
        if following.signature != _ALL:
            self.fail("its log is damaged")
        return own, _unjoined(section.read(following))

    def message_ended(self, told: Sequence[bytes]) -> None:
        """All ranks have told this one something."""
        self._log(_ALL, _joined(told))

    def _log(self, signature: int, message: bytes) -> None:
        if self._section is None or self._objected:
            return
        kept = _Kept(signature=signature, length=len(message))
        self._take_room(kept)
        for log, address in kept.rooms:
            log.write(address, message)
        self._completed(kept)

    # --- cost --------------------------------------------------------------------------------

    @property
    def is_measured(self) -> bool:
        """Whether `boundary` has something to do."""
        return self._most_cost is not None and not self._objected

    def boundary(self, step: int, now_s: float) -> None:
        """Called between steps: gives healing up where it costs more than it may."""
        if self._most_cost is None or self.mode is not Mode.MADE or self._states <= BEGINNING:
            return
        if self._measured_from is None:
            self._measured_from, self._cost_s = (step, now_s), 0.0
            return
        first, since_s = self._measured_from
        if step - first < MEASURED_STEPS:
            return
        share = self._cost_s / max(now_s - since_s, 1e-9)
        self._measured_from = None
        if share > self._most_cost:
            self._most_cost = None
            self.object_to(f"it would cost {share:.1%} of the time")


def _joined(told: Sequence[bytes]) -> bytes:
    sizes = b"".join(len(each).to_bytes(8, "little") for each in told)
    return len(told).to_bytes(8, "little") + sizes + b"".join(told)


def _unjoined(data: bytes) -> list[bytes]:
    count = int.from_bytes(data[:8], "little")
    at, told = 8 * (1 + count), []
    for number in range(count):
        size = int.from_bytes(data[8 * (1 + number) : 8 * (2 + number)], "little")
        told.append(data[at : at + size])
        at += size
    return told
