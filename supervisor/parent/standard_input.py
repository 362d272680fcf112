"""Standard input is part of the run: each attempt reads it from its beginning.

A file is put back to where it stood. Of a pipe nothing is taken before the script reads; from then
on what comes is kept in `input/data` and handed to the script, at most a page ahead of it, by a
pipe of ours. A terminal, a device and a closed input are left alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import stat
import sys
import termios
import threading
from dataclasses import dataclass
from typing import IO

from supervisor.errors import RunDirectoryError
from supervisor.storage.files.json_files import load_record
from supervisor.storage.files.private_files import make_private, open_private, write_json
from supervisor.storage.run.rundir import RunDirectory

_PAGE = 4096
_SET_SIZE = getattr(fcntl, "F_SETPIPE_SZ", 1031)
_STDIN = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptState:
    """What a later parent must know (`input/state.json`).

    Attributes:
        is_whole: all of the pipe is in `data`.
        is_too_long: it is not kept any more.
        path, offset: of a file, and where the run began in it; empty for a pipe.
    """

    is_whole: bool = False
    is_too_long: bool = False
    path: str = ""
    offset: int = 0


class StandardInput:
    """What the script reads, for all attempts of this parent and for later ones.

    Attributes:
        paths: by which the worker of the attempt under way opens its pipe, and tells that it is
            read; the word ``now`` if it begins with what is kept; empty where nothing is needed.
    """

    def __init__(self, rundir: RunDirectory, limit_mib: float, *, is_resume: bool = False) -> None:
        self._folder = rundir.root / "input"
        self._data, self._before = self._folder / "data", self._folder / "before"
        self._command = f"supervisor resume {rundir.root}"
        self._limit = int(limit_mib * 2**20)
        self._news: list[str] = []
        self._mode = _mode()
        self._state = self._load() if is_resume else KeptState()
        self._had = 0
        self._refused = ""
        self._ends: list[int] = []
        self._stop = -1
        self._waits = False
        self._thread: threading.Thread | None = None
        self.paths: tuple[str, ...] = ()
        self._is_pipe = stat.S_ISFIFO(self._mode) or stat.S_ISSOCK(self._mode)
        self._offset: int | None = None
        if stat.S_ISREG(self._mode):
            self._begin_file()
        elif is_resume:
            self._take_up()

    def refused(self) -> str:
        """Why no attempt can begin: what it would read is gone; empty if it can."""
        if self._state.is_too_long and not self._refused:
            return (
                f"standard input was longer than is kept ({self._limit / 2**20:g} MiB, "
                "limits.stdin_mib): start anew with all of it, best from a file: supervisor run "
                "... < FILE"
            )
        return self._refused

    @property
    def is_wrong(self) -> bool:
        """Whether what is piped in is not what the run has read before."""
        return bool(self._refused)

    @property
    def is_awaited(self) -> bool:
        """Whether the script has read all that has come, and waits for more."""
        unread = bytearray(4)
        if not self._ends or not self._waits:
            return False
        fcntl.ioctl(self._ends[0], termios.FIONREAD, unread)
        return not any(unread)

    def news(self) -> list[str]:
        """Returns what is to be told, once."""
        told, self._news = self._news, []
        return told

    def begin_attempt(self) -> None:
        """Called before a worker is started."""
        if self._offset is not None:
            with contextlib.suppress(OSError):
                os.lseek(_STDIN, self._offset, os.SEEK_SET)
        elif self._is_pipe or self._data.exists():
            relay, feed = os.pipe()
            asked, asks = os.pipe()
            stopped, self._stop = os.pipe()
            with contextlib.suppress(OSError):
                fcntl.fcntl(feed, _SET_SIZE, _PAGE)
            os.set_blocking(feed, False)
            self._ends = [relay, asked, asks, stopped]
            now = ("now",) if self._data.exists() and not self._had else ()
            self.paths = (*(f"/proc/{os.getpid()}/fd/{fd}" for fd in (relay, asks)), *now)
            self._thread = threading.Thread(
                target=self._pump, args=(asked, stopped, feed), name="supervisor-input", daemon=True
            )
            self._thread.start()

    def end_attempt(self) -> None:
        """Called when the worker has ended."""
        if self._thread is None:
            return
        os.close(self._stop)
        self._thread.join()
        self._waits = False
        for descriptor in self._ends:
            os.close(descriptor)
        self._thread, self._ends, self.paths = None, [], ()

    def _begin_file(self) -> None:
        with contextlib.suppress(OSError):
            self._offset = os.lseek(_STDIN, 0, os.SEEK_CUR)
            path = os.path.realpath(f"/proc/{os.getpid()}/fd/{_STDIN}")
            self._save(KeptState(path=path, offset=self._offset))

    def _take_up(self) -> None:
        """Goes on with what an earlier parent has kept."""
        state = self._state
        if state.path:
            with contextlib.suppress(OSError):  # gone: perhaps it was never read
                file = os.open(state.path, os.O_RDONLY)
                os.dup2(file, _STDIN)
                os.close(file)
                self._offset = state.offset
        elif self._is_pipe and not state.is_whole:
            with contextlib.suppress(OSError):  # all of it comes again: compared with what was read
                self._had = self._data.stat().st_size
                os.replace(self._data, self._before)
            self._state = KeptState()
        elif self._data.exists() and not state.is_whole:
            self._refused = (
                "standard input was a pipe, which had not been read to its end: pipe all of it in "
                f"again: ... | {self._command}"
            )

    # --- the thread ----------------------------------------------------------------------------

    def _pump(self, asked: int, stopped: int, feed: int) -> None:
        try:
            if _await(stopped, asked, select.POLLIN):
                self._feed_all(stopped, feed)
        except OSError as error:
            self._news.append(f"standard input: {error.strerror or error}")
        finally:
            os.close(feed)

    def _feed_all(self, stopped: int, feed: int) -> None:
        make_private(self._folder)
        with open_private(self._data, "a+b", 0) as data:
            data.seek(0)
            while page := data.read(_PAGE):
                if not _write(stopped, feed, page):
                    return
            while not self._state.is_whole and self._is_pipe:
                # Only where there is room: what is not wanted yet stays where it is.
                if not _await(stopped, feed, select.POLLOUT):
                    return
                self._waits = True
                if not _await(stopped, _STDIN, select.POLLIN):
                    return
                self._waits = False
                page = os.read(_STDIN, _PAGE)
                if not self._keep(data, page) or not page or not _write(stopped, feed, page):
                    return

    def _keep(self, data: IO[bytes], page: bytes) -> bool:
        """Keeps what came; returns whether the script may have it."""
        at = 0 if self._state.is_too_long else data.seek(0, os.SEEK_END)
        if at < self._had and not self._is_same(at, page):
            self._refused = (
                "standard input is not what this run has read before: pipe the same in again, from "
                f"its beginning: ... | {self._command}"
            )
            return False
        if not page:
            if not self._state.is_too_long:
                self._save(KeptState(is_whole=True))
        elif not self._state.is_too_long:
            too_long = at + len(page) > self._limit
            try:
                if not too_long:
                    data.write(page)
            except OSError as error:
                too_long = True
                self._news.append(f"standard input cannot be kept: {error.strerror}")
            if too_long:
                data.truncate(0)
                self._save(KeptState(is_too_long=True))
                self._news.append(
                    f"standard input is longer than {self._limit / 2**20:g} MiB (limits.stdin_mib)"
                    ": it is not kept, and after a kill this run cannot go on"
                )
        return True

    def _is_same(self, at: int, page: bytes) -> bool:
        """Whether what comes is what an earlier parent was given there."""
        with contextlib.suppress(OSError), open_private(self._before, "rb") as before:
            before.seek(at)
            known = before.read(len(page)) if page else b"?"
            return page[: len(known)] == known
        return False

    def _save(self, state: KeptState) -> None:
        self._state = state
        with contextlib.suppress(OSError):
            make_private(self._folder)
            write_json(self._folder / "state.json", state)

    def _load(self) -> KeptState:
        try:
            return load_record(self._folder / "state.json", KeptState, help_text="")
        except RunDirectoryError:
            return KeptState()


def not_for_ranks() -> tuple[str, ...]:
    """Returns what the command lines of several ranks say where our own input holds data: none of
    them gets it."""
    mode = _mode()
    has_data = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISREG(mode)
    return ("", "") if has_data else ()


def _mode() -> int:
    if sys.stdin is None:  # closed when this process began: another file may have its number
        return 0
    try:
        return os.fstat(_STDIN).st_mode
    except OSError:
        return 0


def _await(stopped: int, descriptor: int, event: int) -> bool:
    """Returns False if the attempt ends before `descriptor` is ready."""
    waiting = select.poll()
    waiting.register(stopped, select.POLLIN)
    waiting.register(descriptor, event)
    return stopped not in {found for found, _ in waiting.poll()}


def _write(stopped: int, feed: int, page: bytes) -> bool:
    while page:
        if not _await(stopped, feed, select.POLLOUT):
            return False
        with contextlib.suppress(BlockingIOError):
            page = page[os.write(feed, page) :]
    return True
