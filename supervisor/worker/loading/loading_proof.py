"""Whether a data set's samples can be left out of a fast-forward: loading them changes nothing.

Python cannot be proved pure, but it can be watched. The first fetches run under a profiler:
nothing is written, no global variable is assigned. What the code reaches is compared before and
after, and once more at every checkpoint that relies on it. The global random generators may move:
what each batch draws from them is noted.

What a call really ran: whether it wrote anything, and which global variables it could change.
"""

from __future__ import annotations

import dis
import io
import os
import statistics
import sys
import time
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from supervisor.errors import pass_on
from supervisor.worker.core.call_state import CallState, has_compiled
from supervisor.worker.loading.fingerprint import CannotTell, NamedGlobals, fingerprint, is_users
from supervisor.worker.loading.worker_proof import owner

_WRITING_METHODS = frozenset({"write", "writelines", "truncate", "flush"})
_WRITING_CALLS = frozenset(
    {
        *("mkdir", "unlink", "remove", "rename", "replace", "rmdir", "truncate", "symlink", "link"),
        *("write", "writev", "pwrite", "sendfile", "fork", "fork_exec", "posix_spawn", "system"),
        *("mkfifo", "start_new_thread", "start_joinable_thread", "imwrite", "execve", "kill"),
        *("chdir", "lseek", "setitimer"),
    }
)
_KEEPING_CALLS = frozenset({"execute", "executemany", "executescript", "commit", "put"})
"""Of databases and queues in C."""
_WRITING_WORDS = frozenset(
    {
        *("write", "writelines", "writerow", "writerows", "write_text", "write_bytes"),
        *("imwrite", "savefig", "savez", "mkdir", "makedirs", "unlink", "debug", "info"),
        *("warning", "error", "exception", "critical"),
    }
)
"""Names that a function of the user's may not even hold: a branch that writes may come later."""


class ExecutedCode:
    """Profiles calls in this thread: slow, for the first few of a kind only.

    Attributes:
        fault: the first thing seen that forbids leaving such a call out; empty if none.
    """

    def __init__(self) -> None:
        self.fault = ""
        self._codes: dict[types.CodeType, dict[str, Any]] = {}
        self._around: dict[int, Any] = {}

    def run(self, call: Callable[[], Any]) -> Any:
        """Returns what `call` does; its exceptions pass."""
        if sys.getprofile() is not None:
            self.fault = "another profiler is at work"
            return call()
        sys.setprofile(self._event)
        try:
            return call()
        finally:
            sys.setprofile(None)

    def reached(self) -> Iterator[Any]:
        """Global variables, and variables of surrounding functions, that the user's code names."""
        yield from self._around.values()
        for code, variables in self._codes.items():
            yield NamedGlobals(code, variables)

    def _event(self, frame: types.FrameType, event: str, what: Any) -> None:
        if self.fault:
            return
        if event == "c_call":
            self._called(what)
        elif event == "call":
            self._entered(frame)

    def _called(self, what: Any) -> None:
        name = getattr(what, "__name__", "")
        owner = getattr(what, "__self__", None)
        writes = name in _WRITING_METHODS and isinstance(owner, io.IOBase)
        if writes and owner not in (sys.stdout, sys.stderr):  # a replay is silent anyway
            self.fault = "loading writes to a file"
        elif name in (_WRITING_CALLS if isinstance(owner, types.ModuleType) else _KEEPING_CALLS):
            self.fault = f"loading calls {name}"

    def _entered(self, frame: types.FrameType) -> None:
        code = frame.f_code
        if code.co_name in ("open_", "open") and code.co_filename.endswith("patches_files.py"):
            if set(str(frame.f_locals.get("mode", "r"))) & set("wax+"):
                self.fault = "loading opens a file for writing"
        elif code.co_name == "save" and code.co_filename.endswith("torch/serialization.py"):
            self.fault = "loading calls torch.save"
        elif code not in self._codes and is_users(code.co_filename):
            self._codes[code] = frame.f_globals
            self.fault = _fault_in(code)
            for name in code.co_freevars:
                value = frame.f_locals.get(name)
                self._around[id(value)] = value


def _fault_in(code: types.CodeType) -> str:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            return f"{code.co_name} assigns the global variable {instruction.argval}"
        if instruction.opname == "STORE_DEREF" and instruction.argval in code.co_freevars:
            return f"{code.co_name} assigns {instruction.argval} of the function around it"
    words = sorted(_WRITING_WORDS.intersection(code.co_names))
    if words:
        return f"{code.co_name} may write ({words[0]})"
    return ""


PROFILED = 3
"""Fetches under a profiler: the second and third show what the first has only set up."""
TIMED = 8
MIN_LOAD_S = 1e-3
"""Cheaper batches are loaded: guarding a batch that was left out costs 0.1 to 0.3 ms."""


class LoadingProof:
    """One data set of loaders without workers; see the module's docstring.

    Args:
        in_worker: this is the process of a loader worker, which shares memory with others.

    Attributes:
        number: of data sets in the order of their first fetches: the same in a replay.
        is_given_up: nothing is noted of its batches any more, all are loaded.
        reason: why it was given up, or is about to be; empty while nothing speaks against it.
    """

    def __init__(
        self,
        number: int,
        data: Any,
        collate: Any,
        call_state: CallState,
        *,
        in_worker: bool = False,
    ) -> None:
        self.number = number
        self._in_worker = in_worker
        self._call_state = call_state
        self.is_given_up = False
        self.reason = ""
        self._data = weakref.ref(data)  # neither must live on because it was watched
        self._collate = weakref.ref(owner(collate))
        self._reached: list[Any] = []
        self._indices: list[int] = []
        self._fingerprints: list[int | None] = []
        self._fetches = 0
        self._times: list[float] = []

    @property
    def data(self) -> Any:
        """The data set; None once it is gone."""
        return self._data()

    def is_of(self, data: Any, collate: Any) -> bool:
        return self._data() is data and self._collate() is owner(collate)

    def watch(self, indices: Any, load: Callable[[], Any]) -> Any:
        """Returns what `load` does; called for every batch that is really loaded."""
        number = self._fetches
        self._fetches += 1
        if self.reason:
            return load()
        if number < PROFILED:
            return self.watch_closely(indices, load)
        if number < PROFILED + TIMED:
            started = time.perf_counter()
            batch = load()
            self._times.append(time.perf_counter() - started)
            return batch
        return load()

    def decide(self) -> None:
        """Gives up if there is a reason to. Called behind each fetch of the live run, not of a
        replay: that has to give up where the recorded run did."""
        if len(self._times) == TIMED and statistics.median(self._times) < MIN_LOAD_S:
            self.reason = self.reason or "loading is cheap"
        self._times = self._times if len(self._times) < TIMED else []
        self.is_given_up = bool(self.reason)

    def holds(self) -> bool:
        """Whether all was watched and nothing has changed. Called when a checkpoint is made."""
        if self.is_given_up or self.reason or self._fetches < PROFILED + TIMED:
            return False
        if has_compiled():  # a replay's guard would keep it from compiling what it runs later
            self.reason = "torch.compile is used"
        else:
            self.compare()
        return not self.reason

    def watch_closely(self, indices: Any, load: Callable[[], Any]) -> Any:
        """Returns what `load` does, under a profiler, and sets `reason` if it changes anything."""
        if not self._fingerprints:
            self._indices = list(indices) if isinstance(indices, (list, tuple)) else []
            self._fingerprints = self._take_fingerprints()
        executed = ExecutedCode()
        batch = executed.run(load)
        if executed.fault:
            self.reason = executed.fault
        else:
            self.compare()
            self._reached += executed.reached()
            self._fingerprints = self._take_fingerprints()
        return batch

    def compare(self) -> None:
        """Sets `reason` if anything has changed since the first look."""
        pairs = zip(self._take_fingerprints(), self._fingerprints, strict=False)
        if any(now is not None and now != before for now, before in pairs) and not self.reason:
            self.reason = "loading changes something that stays"

    def _compared_data(self) -> Any:
        return self._data()

    def _take_fingerprints(self) -> list[int | None]:
        """Of the data set, how it is collated, what else the first fetches could reach, and the
        environment.

        None for what is gone: that cannot have kept anything. Sets `reason` if one cannot be told.
        """
        found: list[int | None] = []
        environment = repr(sorted(os.environ.items()))
        for own in (self._compared_data(), self._collate(), self._reached, environment):
            try:
                with self._call_state.region():
                    found.append(
                        None
                        if own is None
                        else fingerprint([own], self._indices, private=self._in_worker)
                    )
            except CannotTell as why:
                self.reason = str(why)
            except BaseException as error:  # the user's own __getattr__
                pass_on(error)
                self.reason = f"{type(error).__name__} when it was looked at"
        return found


class LoadingPromise(LoadingProof):
    """Stands for every data set where `fast_forward.skip_loading` is true: the user's word."""

    def __init__(self, call_state: CallState) -> None:
        super().__init__(0, self, LoadingPromise, call_state)

    def watch(self, indices: Any, load: Callable[[], Any]) -> Any:
        with self._call_state.region():  # what it reads and opens is the user's word, too
            return load()

    def decide(self) -> None:
        """It is never given up."""

    def holds(self) -> bool:
        return True
