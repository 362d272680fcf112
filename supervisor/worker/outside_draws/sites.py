"""The places of code that draw from outside, and whose draws they are."""

from __future__ import annotations

import os
import sys
import threading
from array import array
from collections import deque
from pathlib import Path
from types import FrameType

CARRIERS = frozenset(
    {
        *("random", "secrets", "uuid", "torch.random", "torch.cuda", "torch.cuda.random"),
        *(
            f"{__package__}.outside_draws",
            f"{__package__}.patches_draws",
            "supervisor.worker.random_state.patches_random",
        ),
        "supervisor.unwarned",
        "supervisor.worker.files.patches_files",
        "supervisor.worker.process.patches_input",
        "supervisor.worker.process.patches_process",
    }
)
"""Modules that draw for whoever calls them."""
OF_THE_PROCESS = frozenset(
    {
        *("asyncio", "concurrent", "filelock", "http", "importlib", "multiprocessing"),
        *("queue", "selectors", "socket", "ssl", "subprocess", "supervisor", "tempfile"),
        *("threading", "torch"),
    }
)
"""Libraries whose draws name locks and sockets, and whose clocks measure how long they wait: that
is the process's own, in a replay too. Torch's seeds are seen on their own."""
LOOKS_ON = frozenset({"tqdm._monitor"})
"""Threads that compare their clock with what the script's own thread has read: a bar that printed
nothing for long is made to print more often. In a replay that was read long ago. They are named,
because no rule tells them from threads whose own waits end by the clock: at the script's time such
a thread would wait for as long as the script reads none, and a hurried replay would end its wait
early."""
_PYTHON = os.path.dirname(os.__file__) + os.sep
_OURS = str(Path(__file__).parents[2]) + os.sep
NUMBER = "a number: "
"""Begins what gives the process's own numbers."""
AT_IMPORT = ", at an import"
"""Ends what is said of a place for which `is_at_import` holds."""


class Site:
    """One place of code that draws.

    Attributes:
        number: in the record; -1 for a place whose draws are the process's own.
        said: the script's line, and what it draws there.
        draws: places in the file of the values that it is still to be given.
        due: how many of them a replay to the checkpoint takes.
        blocks: places in the file of its clock readings.
        times: readings that a replay is given next.
        waiting: readings that are not in the file yet.
        last: the number of the process that it gave last; -1 for none.
    """

    __slots__ = ("blocks", "draws", "due", "last", "number", "said", "taken", "times", "waiting")

    def __init__(self, number: int, said: str = "") -> None:
        self.number, self.said = number, said
        self.draws: array[int] = array("Q")
        self.taken = self.due = 0
        self.last = -1
        self.blocks: deque[int] = deque()
        self.times: deque[int] = deque()
        self.waiting: array[int] = array("q")

    @property
    def is_number(self) -> bool:
        """Whether it gives numbers of the process, which no other process is given."""
        return f" draws from {NUMBER}" in self.said

    @property
    def is_at_import(self) -> bool:
        """Whether a replay may draw it at another time, or not at all."""
        return self.said.endswith(AT_IMPORT)


def caller() -> FrameType:
    """The frame that draws, through the modules that draw for others."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") in CARRIERS:
        frame = frame.f_back
    return frame


def line_of_script(frame: FrameType | None) -> str:
    """`file:line` of the innermost call that belongs to no library; empty for none."""
    first = frame
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith((_PYTHON, _OURS, "<")) and "site-packages" not in path:
            return f"{os.path.basename(path)}:{frame.f_lineno}"
        frame = frame.f_back
    if first is None or threading.current_thread() is not threading.main_thread():
        return ""
    return f"{os.path.basename(first.f_code.co_filename)}:{first.f_lineno}"


def is_at_import(frame: FrameType | None, *, of_any: bool = False) -> bool:
    """Whether a module of Python's own, or one that torch brings, draws while it is imported; with
    `of_any` one of any library.

    A process may have such a module before the script asks for it: that in which `supervisor
    explain` replays has torch already. What is recorded of it is given back where it is asked for.
    """
    first, is_imported, is_torchs = frame, False, False
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith("<frozen importlib"):
            is_imported = True
        elif not path.startswith((_PYTHON, _OURS)) and "site-packages" not in path:
            break
        is_torchs = is_torchs or _top(frame) == "torch"
        frame = frame.f_back
    of_python = first is not None and _top(first) in sys.stdlib_module_names
    return is_imported and (of_any or is_torchs or of_python)


def _top(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
