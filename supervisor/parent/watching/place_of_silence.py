"""Whether a silent script stands where it has trained: from its stacks and its source.

A place belongs to the training if the loop that trained goes around it. After that loop a script
may upload, wait for its threads or serve for as long as it likes, and none of it is a hang.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path

from supervisor.parent.watching.watchdog import Watchdog
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.run.training_places import TrainingPlace, read_places

Frame = tuple[str, int, str]
"""File, line, and the function's name."""

_HEADER = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-f]+).*:$")
_FRAME = re.compile(r'^\s+File "(.*)", line (\d+) in (.*)$')
_OURS = str(Path(__file__).parents[2]) + os.sep
_PYTHON = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_READS_INPUT = os.path.join("worker", "process", "patches_input.py")
_LOOPS = (
    *(ast.For, ast.AsyncFor, ast.While),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class Standing(Enum):
    """Where the training's thread stands.

    TRAINING: within the loop that has trained, or it cannot be told. BETWEEN: elsewhere, but a loop
    further out may bring it back. OVER: behind all loops that have trained. INPUT: it waits for
    standard input.
    """

    TRAINING = "training"
    BETWEEN = "between"
    OVER = "over"
    INPUT = "input"


class Patience:
    """How long ranks that are silent may wait where they stand.

    Attributes:
        is_over: they stood behind all loops that have trained.
    """

    def __init__(
        self, rundir: RunDirectory, attempt: int, ranks: Sequence[int], say: Callable[[str], None]
    ) -> None:
        self._rundir, self._attempt, self._ranks, self._say = rundir, attempt, ranks, say
        self._told: set[str] = set()
        self.is_over = False

    def may_wait(
        self, watchdog: Watchdog, now_s: float, *, awaits_input: bool, is_completed: bool
    ) -> bool:
        """Whether they stand where nothing was seen to train, and not for too long; said once for
        each place. Asked when all have written their stacks."""
        if watchdog.start_silence_s is None:
            return False
        places, waiting = [], ""
        for rank in self._ranks:
            stacks = self._rundir.stacks(self._attempt, rank)
            threads = last_dump(stacks.read_text(errors="replace") if stacks.exists() else "")
            places.append(find_place(threads, read_places(self._rundir.places(rank))))
            waiting = waiting or waits_in(threads)
        if is_completed or awaits_input:
            places = [Standing.OVER if is_completed else Standing.INPUT]
        if Standing.TRAINING in places:
            return False
        limit_s = watchdog.found_elsewhere(now_s)
        is_late = watchdog.silent_s(now_s) > limit_s
        self.is_over = is_late and all(place is Standing.OVER for place in places)
        if not is_late and waiting not in self._told:
            self._told.add(waiting)
            input_ = Standing.INPUT in places
            what = "waits for standard input" if input_ else "no training is under way"
            self._say(
                f"no step for {watchdog.since_step_s(now_s):.0f} s, but {what}: in "
                f"{waiting or '?'}: its process is ended after {limit_s:g} s of silence "
                "(watchdog.idle_timeout_s)"
            )
        return not is_late


def last_dump(text: str) -> list[tuple[int, list[Frame]]]:
    """Returns the threads of the last of several dumps of `faulthandler`, the main one last, each
    with its frames, innermost first."""
    blocks: list[tuple[int, list[Frame]]] = []
    for line in text.splitlines():
        if header := _HEADER.match(line):
            blocks.append((int(header[1], 16), []))
        elif (frame := _FRAME.match(line)) and blocks:
            blocks[-1][1].append((frame[1], int(frame[2]), frame[3]))
    if not blocks:
        return []
    main = blocks[-1][0]
    earlier = [number for number, block in enumerate(blocks[:-1]) if block[0] == main]
    return blocks[earlier[-1] + 1 :] if earlier else blocks


def find_place(
    threads: Sequence[tuple[int, Sequence[Frame]]], known: Sequence[TrainingPlace]
) -> Standing:
    """Returns where a script stands.

    Args:
        threads: of the last dump, the main one last.
        known: places where this attempt has trained.
    """
    if not threads or not known:
        return Standing.TRAINING
    main, frames = threads[-1]
    if frames and frames[0][0].endswith(_READS_INPUT):
        return Standing.INPUT
    sources = _Sources()
    computing = {place.thread for place in known if not place.loads}
    found = Standing.OVER
    for thread, stack in threads:
        if thread == main or thread in computing:
            for place in known:
                here = _compare(sources, stack, place)
                if here is Standing.TRAINING:
                    return here
                found = here if here is Standing.BETWEEN else found
    return found


def waits_in(threads: Sequence[tuple[int, Sequence[Frame]]]) -> str:
    """Returns ``function (file:line)`` of what a process waits for: the main thread's innermost
    frame in the script or a library; where it waits for threads, one of theirs; empty without."""
    for _, stack in reversed(threads):
        for file, line, function in stack:
            if not file.startswith((_OURS, "<frozen ")) and (
                not file.startswith(_PYTHON) or "site-packages" in file
            ):
                return f"{function} ({file}:{line})"
    return ""


def _compare(sources: _Sources, stack: Sequence[Frame], place: TrainingPlace) -> Standing:
    """The innermost loop around a place is the one that trains; those further out repeat it."""
    here = Standing.OVER
    trains = False
    for depth, (file, line) in enumerate(place.frames):
        span = sources.loop(file, line)
        is_last = depth == len(place.frames) - 1
        if span is None and is_last and not trains:  # no loop at all: its innermost function is one
            file, line = place.frames[0]
            span = sources.function(file, line)
        if span is None:
            continue
        for at_file, at_line, _ in stack:
            if at_file == file and span[0] <= at_line <= span[1]:
                if not trains or at_line != line:
                    return Standing.TRAINING
                here = Standing.BETWEEN
        trains = True
    return here


class _Sources:
    """Loops and functions of files, by line; of a file that cannot be read all of it is a loop."""

    def __init__(self) -> None:
        self._trees: dict[str, ast.Module | None] = {}

    def loop(self, file: str, line: int) -> tuple[int, int] | None:
        """Returns the lines of the outermost loop around a line within its function."""
        if (tree := self._tree(file)) is None:
            return 0, 2**31
        function = self.function(file, line) or (0, 2**31)
        around = [
            span
            for node in ast.walk(tree)
            if isinstance(node, _LOOPS) and (span := _span(node))[0] <= line <= span[1]
        ]
        within = [span for span in around if function[0] <= span[0] and span[1] <= function[1]]
        return min(within, default=None)

    def function(self, file: str, line: int) -> tuple[int, int] | None:
        """Returns the lines of the innermost function around a line; None in a module's own."""
        if (tree := self._tree(file)) is None:
            return 0, 2**31
        around = [
            span
            for node in ast.walk(tree)
            if isinstance(node, _FUNCTIONS) and (span := _span(node))[0] <= line <= span[1]
        ]
        return max(around, default=None)

    def _tree(self, file: str) -> ast.Module | None:
        if file not in self._trees:
            try:
                self._trees[file] = ast.parse(Path(file).read_bytes())
            except (OSError, SyntaxError, ValueError, RecursionError):
                self._trees[file] = None
        return self._trees[file]


def _span(node: ast.AST) -> tuple[int, int]:
    first: int = getattr(node, "lineno", 0)
    return first, getattr(node, "end_lineno", None) or first
