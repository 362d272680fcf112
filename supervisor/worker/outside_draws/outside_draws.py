"""What the script draws from outside of its process: entropy of the system, and clocks.

A replay runs the script's own code again. Seeds, names and decisions that come from outside would
be others there, and the training another one. So each value that the script's own thread is given
outside of regions is recorded at the place that draws it, and a replay is given the same values at
the same places. After the target entropy goes on to come from the record as far as that reaches,
so that steps which are trained again are the same; clocks are read again, and those that count from
anywhere (`time.monotonic`) run on from what the script has seen last.
"""

from __future__ import annotations

import json
import os
import threading
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Protocol

from supervisor.worker.outside_draws.draws_file import (
    DRAW,
    NUMBERS,
    SITE,
    TIMES,
    DrawsReader,
    DrawsWriter,
)
from supervisor.worker.outside_draws.sites import (
    AT_IMPORT,
    LOOKS_ON,
    NUMBER,
    OF_THE_PROCESS,
    Site,
    caller,
    is_at_import,
    line_of_script,
)

META = "outside"
"""The entry of a checkpoint's manifest."""
_MOST_CODES = 8_192
"""Places of code that are known at a glance; a script that makes code at each step has more."""
_LASTING = ("getpid", "getppid")
"""Their number stays: a place that asks at each batch of a loader's worker has it noted once."""
_WAITING = 4_096
"""Clock readings of a place that are written at once: 32 KiB, before they are packed."""


class Depth(Protocol):
    """`CallState`, which needs torch."""

    active: bool
    depth: int
    thread: int


class OutsideDraws:
    """The record of one rank; there is one in each worker.

    Attributes:
        lost: why what was drawn cannot be given again; empty while it can.
    """

    def __init__(self) -> None:
        self.lost = ""
        self._reader: DrawsReader | None = None
        self._writer: DrawsWriter | None = None
        self._path = Path()
        self._cut = 0
        self._is_replay = self._is_off = self._is_spawned = False
        self._is_ours = True
        self._depth: Depth | None = None
        self._pid = os.getpid()
        self._thread = threading.get_ident()
        # By the code's `id`, with the code, which lives so: to hash one goes through all of it.
        self._known: dict[tuple[int, int, str], tuple[Site, CodeType]] = {}
        self._sites: dict[str, Site] = {}
        self._numbered: list[Site] = []
        self._nobodys = Site(-1)
        self._offsets: dict[str, int] = {}
        self._last_given: dict[str, int] = {}
        self._renumbered: list[int] = []
        self._became: dict[int, int] = {}
        self._numbers: dict[int, int] = {}

    # --- when ------------------------------------------------------------------------------------

    def install(self, path: Path, *, resumes: bool) -> None:
        """Called first in the process, before the script begins.

        Args:
            path: of the record.
            resumes: this attempt is to start from a checkpoint; else the record begins anew.
        """
        self._path, self._pid = path.absolute(), os.getpid()
        self._thread = threading.get_ident()
        self._marker.unlink(missing_ok=True) if not resumes else None
        self._is_replay = resumes
        self._is_ours = False
        try:
            if resumes:
                self._read_index()
            else:
                self._writer = DrawsWriter(path)
        except OSError as error:
            self.lost = f"what the script draws from outside is not recorded: {error}"
        os.register_at_fork(after_in_child=self._in_child)

    def watches_for(self, path: Path) -> None:
        """Called in a process that the script has started anew, instead of `install`: what it draws
        no resume can give again. `path` is that of the training's record."""
        self._path = path
        self._is_ours, self._is_off, self._is_spawned = False, True, True

    @property
    def path(self) -> Path:
        """Of the record; without a name before `install`."""
        return self._path

    def torch_arrives(self) -> None:
        """What is drawn from here on, until `session_begins`, is ours."""
        self._is_ours = True

    def session_begins(
        self, depth: Depth, meta: Mapping[str, Any] | None, is_experiment: bool
    ) -> None:
        """Called when it is known where this attempt begins.

        Args:
            depth: whether a call is the script's own.
            meta: `mark` of the checkpoint; None without a checkpoint.
            is_experiment: the recorded run is to come again, from its beginning, too.
        """
        self._depth, self._is_ours = depth, False
        if meta is None and is_experiment:
            self._is_replay = False
        elif self._is_replay and meta is None:
            self._goes_live(0)
        elif meta is not None:
            self._cut = int(meta.get("size", 0))
            self.lost = self.lost or str(meta.get("lost", ""))
            reader = self._reader
            if reader is None or reader.digest(self._cut) != meta.get("digest"):
                self.lost = self.lost or "the record of what the script draws from outside is gone"
                self._cut = 0
            for place in self._renumbered:
                if place < self._cut and reader is not None:
                    self._became.update(map(tuple, json.loads(reader.data(place))))
            for site in self._numbered:
                site.due = sum(place < self._cut for place in site.draws)
                site.blocks = deque(place for place in site.blocks if place < self._cut)

    def arrived(self, *, may_leave_out: bool) -> list[str]:
        """The target is reached: from here on clocks are read. Returns why a resume is not exact.

        Args:
            may_leave_out: loading was left out, with the draws that it would have made.
        """
        if not self._path.name:  # never installed
            return []
        for site in self._numbered:
            if self.lost or may_leave_out:
                break
            if site.is_number:
                continue
            if site.taken < site.due or site.times or site.blocks:
                self._differs(site)
        for kind, last in self._last_given.items():
            self._runs_on(kind, last)
        self._goes_live(self._cut)
        return [self.lost] if self.lost else []

    def mark(self) -> dict[str, Any]:
        """Returns what a checkpoint made now needs of this, as JSON."""
        writer = self._writer
        if writer is None:
            return {"lost": self.lost or "the record of outside draws was never begun"}
        if not self.lost and self._marker.exists():
            self.lost = self._marker.read_text(errors="replace").split("\n")[0]
        for site in self._numbered:
            if site.waiting:
                self._write_times(site)
        return {"size": writer.size, "digest": writer.digest, "lost": self.lost}

    def sync(self) -> None:
        if self._writer is not None:
            self._writer.sync()

    # --- what the patched functions ask ----------------------------------------------------------

    def is_scripts(self) -> bool:
        """Whether a call comes from the script's own thread and is no part of a region."""
        depth = self._depth
        if self._is_off or self._is_ours:
            return False
        if depth is None:
            return threading.get_ident() == self._thread
        return depth.active and not depth.depth and threading.get_ident() == depth.thread

    def draw(self, what: str, make: Callable[[], bytes], size: int | None = None) -> bytes:
        """Returns entropy: recorded, or made and recorded.

        Args:
            what: the name of the source, for people.
            make: draws it.
            size: which it must have; None for any.
        """
        if not self.is_scripts():
            self._may_be_lost(what)
            return make()
        frame = caller()
        site = self._site(frame, what)
        if site.number < 0:
            return make()
        if site.taken < len(site.draws) and self._reader is not None:
            drawn = self._reader.data(site.draws[site.taken])
            site.taken += 1
            if size is None or len(drawn) == size:
                if not self._is_replay:
                    self._note(site, drawn)
                return drawn
        if self._is_replay:
            self._differs(site)
        drawn = make()
        self._note(site, drawn)
        return drawn

    def reads(self, what: str) -> None:
        """Entropy is read in a way in which none can be given."""
        if self.is_scripts():
            said = line_of_script(caller())
            self.lose(f"{said} draws from {what}, which no resume can give again")
        else:
            self._may_be_lost(what)

    def clock(self, kind: str, now: Callable[[], int], frame: FrameType) -> int:
        """Returns a reading of a clock in nanoseconds."""
        depth = self._depth
        if (depth is not None and depth.depth) or not self.is_scripts():
            if self._is_replay and frame.f_globals.get("__name__") in LOOKS_ON:
                return self._last_given.get(kind, now())
            return now() + self._offsets.get(kind, 0)
        known = self._known.get((id(frame.f_code), frame.f_lasti, kind))
        site = self._site(frame, kind) if known is None else known[0]
        if site.number < 0:
            return now()
        if self._is_replay:
            if not site.times and site.blocks and self._reader is not None:
                site.times.extend(self._reader.times(site.blocks.popleft()))
            if site.times:
                given = self._last_given[kind] = site.times.popleft()
                return given
            self._differs(site)
            self._runs_on(kind, self._last_given.get(kind))
        read = now() + self._offsets.get(kind, 0)
        if self._writer is not None:
            site.waiting.append(read)
            if len(site.waiting) >= _WAITING:
                self._write_times(site)
        return read

    def own(self, what: str, number: int) -> None:
        """Notes a number that only this process can use: of a child, a descriptor, a port."""
        if number < 0 or not self.is_scripts():
            return
        site = self._site(caller(), f"{NUMBER}{what}")
        if site.number < 0 or (what in _LASTING and number == site.last):
            return
        site.last = number
        if not self._is_replay:
            self._note(site, str(number).encode())
        elif site.taken < len(site.draws) and self._reader is not None:
            self._numbers[int(self._reader.data(site.draws[site.taken]))] = number
            site.taken += 1

    def numbers(self) -> dict[int, int]:
        """Returns the process's own numbers that the replay has met: recorded → this process's."""
        return {self._became.get(old, old): new for old, new in self._numbers.items()}

    def lose(self, why: str) -> None:
        """From here on no resume is exact."""
        self.lost = self.lost or why

    # --- helpers ---------------------------------------------------------------------------------

    @property
    def _marker(self) -> Path:
        """Where a process that the script has started tells what it has drawn."""
        return self._path.with_suffix(".outside_lost")

    def _read_index(self) -> None:
        self._reader = DrawsReader(self._path)
        for kind, number, place in self._reader.entries():
            if kind == SITE:
                text = self._reader.data(place).decode(errors="replace")
                self._add(text, text.rpartition("\n")[2])
            elif kind == DRAW:
                self._numbered[number].draws.append(place)
            elif kind == TIMES:
                self._numbered[number].blocks.append(place)
            elif kind == NUMBERS:
                self._renumbered.append(place)

    def _add(self, text: str, said: str) -> Site:
        site = self._sites[text.partition("\n")[0]] = Site(len(self._numbered), said)
        self._numbered.append(site)
        return site

    def _site(self, frame: FrameType, what: str) -> Site:
        code, at = frame.f_code, frame.f_lasti
        key = (id(code), at, what)
        known = self._known.get(key)
        if known is None:
            module = str(frame.f_globals.get("__name__", "")).partition(".")[0]
            name = f"{what}|{code.co_filename}|{code.co_name}|{code.co_firstlineno}|{at}"
            name = name.replace("\n", " ")
            its_own = ("supervisor",) if what.startswith(NUMBER) else OF_THE_PROCESS
            if module in its_own and not code.co_filename.startswith("<"):
                site = self._nobodys
            elif name in self._sites:
                site = self._sites[name]
            else:
                said = f"{line_of_script(frame)} draws from {what}".replace("\n", " ")
                said += AT_IMPORT if is_at_import(frame) else ""
                site = self._add(f"{name}\n{said}", said)
                if self._writer is not None:
                    self._append(SITE, site, f"{name}\n{said}".encode())
            if len(self._known) < _MOST_CODES:
                self._known[key] = site, code
            return site
        return known[0]

    def _note(self, site: Site, drawn: bytes) -> None:
        if self._writer is not None:
            self._append(DRAW, site, drawn)

    def _append(self, kind: int, site: Site, data: bytes) -> None:
        writer = self._writer
        assert writer is not None
        try:
            if not writer.is_full:
                writer.append(kind, site.number, data)
                return
            self.lose(f"{site.said}: the record of such draws is full")
        except OSError as error:
            self.lose(f"{site.said}, which could not be recorded: {error}")
        self._writer = None

    def _write_times(self, site: Site) -> None:
        waiting, site.waiting = site.waiting, array("q")
        if self._writer is None:
            return
        try:
            if not self._writer.is_full:
                self._writer.append_times(site.number, waiting)
                return
            self.lose(f"{site.said}: the record of such draws is full")
        except OSError as error:
            self.lose(f"{site.said}, which could not be recorded: {error}")
        self._writer = None

    def _differs(self, site: Site) -> None:
        if not site.is_at_import:
            self.lose(f"{site.said} otherwise than the recorded run")

    def _runs_on(self, kind: str, last: int | None) -> None:
        """A clock that counts from anywhere goes on from where the script saw it last."""
        now = RUNNING.get(kind)
        if now is not None and last is not None:
            self._offsets[kind] = last - now()

    def _goes_live(self, cut: int) -> None:
        """From here on draws are recorded, behind the first `cut` bytes of the record."""
        self._is_replay = False
        reader = self._reader
        for site in self._numbered:
            goes_on = cut and not site.is_number
            site.taken = max(site.taken, site.due) if goes_on else len(site.draws)
            site.blocks.clear()
            site.times.clear()
        try:
            before = None if reader is None else reader.descriptor
            self._writer = DrawsWriter(self._path, before=before, keep=cut)
        except OSError as error:
            self.lose(f"what the script draws from outside is not recorded: {error}")
            return
        known = self._numbered_before(cut)
        for site in self._numbered[known:]:  # numbers go on in the order of the file
            name = next(n for n, one in self._sites.items() if one is site)
            self._append(SITE, site, f"{name}\n{site.said}".encode())
        if self._numbers and self._numbered:
            pairs = list(self._numbers.items())
            self._append(NUMBERS, self._numbered[0], json.dumps(pairs).encode())

    def _numbered_before(self, cut: int) -> int:
        if self._reader is None or not cut:
            return 0
        return sum(kind == SITE and at < cut for kind, _, at in self._reader.entries())

    def _may_be_lost(self, what: str) -> None:
        """A thread of the script's, or a process that it has started, draws: nobody can say when it
        would draw in a replay."""
        is_elsewhere = self._is_spawned or (self._depth is not None and self._depth_is_elsewhere())
        if self.lost or self._is_ours or not is_elsewhere:
            return
        frame = caller()
        if self._is_spawned and is_at_import(frame, of_any=True):
            return
        module = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        said = line_of_script(frame)
        if module in OF_THE_PROCESS or not said:
            return
        where = "another process" if self._is_off else "a thread"
        self.lost = f"{said} draws from {what} in {where}, which no resume can give again"
        if self._is_off:
            try:
                self._marker.write_text(self.lost)
            except OSError:
                return

    def _depth_is_elsewhere(self) -> bool:
        return self._is_off or threading.get_ident() != getattr(self._depth, "thread", None)

    def _in_child(self) -> None:
        self._is_off = True
        self._writer = None


RUNNING: dict[str, Callable[[], int]] = {}
"""Clocks that count from anywhere → the original function that reads one."""
OUTSIDE = OutsideDraws()
"""That of this process."""
