"""What a call really ran: whether it wrote anything, and which global variables it could change."""

from __future__ import annotations

import dis
import io
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from supervisor.worker.recording.loading.named_globals import NamedGlobals, is_users

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
