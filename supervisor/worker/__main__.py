"""One rank of one attempt; started by the parent alone, see `supervisor.own_process`."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from supervisor.errors import SupervisorError, pass_on
from supervisor.own_process import STANDBY, Given, command, give_back
from supervisor.storage.files.kept_writes import KEPT
from supervisor.storage.run import handover, healing_memory, training_places
from supervisor.storage.run.exit_notes import ExitNote, outside_cause, save_exit_note
from supervisor.storage.run.healing_memory import OwnHealing
from supervisor.storage.run.run_state import load_order
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.script_files.set_aside import undo_unfinished
from supervisor.worker.core.module_arrival import ModuleArrival
from supervisor.worker.core.process_signs import LOADING, SHORT, ExitRequest
from supervisor.worker.outside_draws.outside_draws import OUTSIDE
from supervisor.worker.outside_draws.patches_draws import watch_outside
from supervisor.worker.process import patches_warnings
from supervisor.worker.process.output import exit_code, show, take_out_our_frames
from supervisor.worker.process.patches_input import KeptInput, keep_answers
from supervisor.worker.process.patches_process import (
    watch_exec,
    watch_exit,
    watch_fork,
    watch_own_signals,
)
from supervisor.worker.process.patches_signals import script_signals
from supervisor.worker.process.program import Program

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str], environment: Mapping[str, str] | None = None) -> int:
    """Runs the program under supervision; returns the process's exit code.

    Args:
        arguments: of the command line.
        environment: what the process was started with, if it was given back already.
    """
    options = _parse(arguments)
    line = [*command("supervisor.worker.__main__"), *arguments]  # before the script changes a path
    waits = environment is None and STANDBY in os.environ
    if waits:
        from supervisor.worker.standby import stand_by

        die_with_parent(Given(os.environ).parent)
        stand_by(line)
    given = give_back(os.environ) if environment is None else Given(environment)
    rundir = RunDirectory(options.run_dir)
    _take_streams(given.streams)
    rank = options.rank if given.place.is_alone else given.place.rank
    _hand_over(options.handover.split(","), given.place.local_rank)
    die_with_parent(given.parent)
    if given.healing:
        healing_memory.mine = OwnHealing(given.healing, given.kept)
    if options.input:
        relay, asks, *now = options.input.split(",")
        KeptInput(relay, asks).install(now=bool(now))
    elif os.isatty(0):
        keep_answers()
    stacks = rundir.stacks(options.attempt, rank)
    rundir.make(stacks.parent)
    if not waits:
        watch_outside()
    _begin_outside(rundir, options.attempt, rank)
    script_signals.install(rundir.signals(rank), stacks)
    _write_whole_lines()
    for problem in undo_unfinished(rundir, [rank]):
        print(f"supervisor: warning: {problem}", file=sys.stderr)
    worker = Worker(rundir, options.attempt, rank, given, line)
    program = Program(
        kind=options.kind,
        target=options.target,
        function=options.function,
        arguments=tuple(options.arguments),
    )
    return worker.run(program)


def _begin_outside(rundir: RunDirectory, attempt: int, rank: int) -> None:
    """Before the script draws anything: its seeds and names may come from the system."""
    try:
        order = load_order(rundir, attempt)
        resumes = order.checkpoint_step is not None or bool(order.experiment)
        resumes |= healing_memory.takes_dead_ranks_place()
    except (SupervisorError, OSError):  # told of where the session cannot be built
        resumes = False
    OUTSIDE.install(rundir.outside(rank), resumes=resumes)


_THREADS_S = 3.0
"""How long threads of the script may take to end where we end its training."""


class Worker:
    """Runs a program and leaves a note of how it ended."""

    def __init__(
        self, rundir: RunDirectory, attempt: int, rank: int, given: Given, line: Sequence[str]
    ) -> None:
        """`given` and `line`: what the process was started with."""
        self._given = given
        self._line = line
        self._pid = os.getpid()
        self._has_left = False
        self._has_ended = False
        self._is_over = False
        self._rundir = rundir
        self._attempt = attempt
        self._rank = rank
        self._session: Any = None

    def run(self, program: Program) -> int:
        arrival = ModuleArrival("torch", self._torch_is_here)
        arrival.install()
        watch_exit(self._script_leaves)
        watch_fork()
        patches_warnings.watch_warnings()
        watch_own_signals(self._signals_itself)
        watch_exec(lambda line, given: self._again(program, line, given), self._becomes)
        try:
            program.run(self._make_run)
            self._await_threads()
        except ExitRequest as leaving:
            if self._is_over and leaving.note == "interrupted":
                return self._leave_threads(self._script_ended())
            self._end(completed=False, parts=leaving.note == "interrupted")
            note = ExitNote(
                kind=leaving.note, message=leaving.reason, evidence=self._samples_at_fault()
            )
            return self._leave_threads(self._leave(note, leaving.code))
        except SystemExit as leaving:
            return self._script_exits(leaving)
        except BaseException as error:
            uncaught = error
        else:
            return self._script_ended()
        return self._script_raised(uncaught)  # no longer handled: hooks raise with no context

    def _torch_is_here(self) -> None:
        """Called when the script has imported torch: supervision begins."""
        from supervisor.worker.start import start_session

        OUTSIDE.torch_arrives()
        self._session = start_session(self._rundir, self._attempt, self._given)

    def _make_run(self) -> Any:
        from supervisor.worker.run import Run

        return Run(self._rundir.root)

    def _script_ended(self, *, leaves: bool = False) -> int:
        """It came to its end: complete, unless its training was still being fast-forwarded.

        Args:
            leaves: not at the end of its file, but by `sys.exit` or `os._exit`.
        """
        shortfall = self._ask(lambda session: session.shortfall, "")
        if not shortfall:
            sick = self._ask(lambda session: session.sickness(), "")
            stopped = self._was_stopped()
            self._end(completed=not stopped and not sick, parts=stopped)
            return self._leave(ExitNote(kind="completed", code=0, sick=sick, leaves=leaves), 0)
        self._session.warn(shortfall)
        self._end(completed=False)
        return self._leave(ExitNote(kind="short", message=shortfall), 1)

    def _script_leaves(self, code: int) -> None:
        """`os._exit`: as `sys.exit`, but nothing is waited for that another thread may hold."""
        if self._has_left:
            return
        if threading.current_thread() is not threading.main_thread():
            shortfall = self._ask(lambda session: session.shortfall, "")
            if shortfall and code == 0:
                self._leave(ExitNote(kind="short", message=shortfall), 1)
            else:
                self._leave(ExitNote(kind="system_exit", code=code), code)
        elif code == 0:
            self._script_ended(leaves=True)
        else:
            self._end(completed=False, parts=True)
            self._leave(ExitNote(kind="system_exit", code=code), code)

    def _signals_itself(self, signum: int) -> None:
        """Before the signal is sent: afterwards there may be no process that could tell."""
        if script_signals.sends_itself(signum):
            self._leave(ExitNote(kind="own_signal", code=signum), 0)
            self._has_left = False

    def _was_stopped(self) -> bool:
        """Whether somebody has asked this process to end, so that this is not the script's end."""
        found = script_signals.stopped(time.time())
        return found is not None and self._session is not None and found[1] <= self._session.grace_s

    def _again(
        self, program: Program, line: Sequence[str], environment: Mapping[str, str]
    ) -> tuple[list[str], dict[str, str]] | None:
        """How the worker begins again where the script executes itself before its training."""
        found = program.again(line)
        if found is None or (self._session is not None and self._session.steps_done):
            return None
        options, same = found
        python, *own = self._line[: self._line.index("--kind")]
        told = ["--kind", same.kind, "--target", same.target, "--", *same.arguments]
        return [python, *options, *own, *told], self._given.environment(environment)

    def _becomes(self, program: str) -> None:
        """Before the script becomes another program: what supervision has is written.

        Raises:
            ExitRequest: its training was still being fast-forwarded.
        """
        shortfall = self._ask(lambda session: session.shortfall, "")
        if shortfall:
            raise ExitRequest(SHORT, shortfall)
        sick = self._ask(lambda session: session.sickness(), "")
        self._end(completed=not sick)
        self._leave(ExitNote(kind="executed", message=os.path.basename(program), sick=sick), 0)

    def _leave_threads(self, code: int) -> int:
        """Threads that python waits for may wait for the training, which has ended."""
        until = time.monotonic() + _THREADS_S
        ending = threading.Thread(target=_end_pools, daemon=True)
        ending.start()
        for thread in (ending, *_threads()):
            thread.join(max(0.0, until - time.monotonic()))
        if any(thread.is_alive() for thread in _threads()):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        return code

    def _await_threads(self) -> None:
        """The script's threads may still be training: python, too, waits for them now."""
        self._is_over = True
        if not any(thread.ident in training_places.computing for thread in _threads()):
            script_signals.act(signal.SIGTERM, _leave_now)  # no boundary comes any more
        if _threads():
            shutdown: Callable[[], None] = threading._shutdown  # type: ignore[attr-defined]
            shutdown()

    def _script_raised(self, error: BaseException) -> int:
        """The note comes before the hook, which may end the process."""
        self._end(completed=False, parts=True)
        _guarded(lambda: take_out_our_frames(error), None)
        if isinstance(error, KeyboardInterrupt):
            self._leave(ExitNote(kind="interrupted", message="KeyboardInterrupt"), 130)
            return show(error) and 130
        bare = ExitNote(kind="exception", exception=type(error).__name__)
        self._leave(_guarded(lambda: self._exception_note(error), bare), 1)
        return show(error)

    def _script_exits(self, leaving: SystemExit) -> int:
        if leaving.code is None or (isinstance(leaving.code, int) and leaving.code == 0):
            return self._script_ended(leaves=True)
        self._end(completed=False, parts=True)
        code = exit_code(leaving)
        message = "" if isinstance(leaving.code, int) else str(leaving.code)
        return self._leave(ExitNote(kind="system_exit", code=code, message=message), code)

    def _end(self, *, completed: bool, parts: bool = False) -> None:
        if os.getpid() == self._pid and not self._has_ended:
            self._has_ended = True
            self._ask(lambda session: session.stop(completed=completed, parts=parts), None)

    def _ask(self, question: Callable[[Any], Any], otherwise: Any) -> Any:
        """Of the session, if there is one; how the script has ended stays whatever that raises."""
        if self._session is None:
            return otherwise
        return _guarded(lambda: question(self._session), otherwise)

    def _exception_note(self, error: BaseException) -> ExitNote:
        kind = type(error)
        module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        text = traceback.format_exception(kind, error, error.__traceback__)
        return ExitNote(
            kind="exception",
            exception=f"{module}{kind.__qualname__}",
            message=_words_of(error)[:2000],
            traceback="".join(text)[-8000:],
            evidence=self._samples_at_fault(),
            phase=self._phase(),
            memory=_guarded(_memory_facts, {}),
            outside=getattr(_guarded(lambda: outside_cause(error), None), "value", ""),
        )

    def _samples_at_fault(self) -> tuple[str, ...]:
        found: tuple[str, ...] = self._ask(lambda session: session.samples_at_fault, ())
        return found

    def _phase(self) -> str:
        if self._session is None:
            return "import"
        return "training" if self._session.steps_done else "before_first_step"

    def _leave(self, note: ExitNote, code: Any) -> int:
        if os.getpid() != self._pid:  # a child that the script forked ends in its own way
            return int(code)
        self._has_left = True
        import dataclasses

        last = self._ask(lambda session: session.steps_done - 1, -1)
        replaying = note.kind in (SHORT, LOADING)
        replaying |= not self._ask(lambda session: session.has_arrived, True)
        if replaying:
            last = -1
        now = time.time()
        stopped_by, stopped_s = script_signals.stopped(now) or (None, 0.0)
        note = dataclasses.replace(
            note,
            last_step=last if last >= 0 else None,
            phase=self._phase(),
            asks_batch_size=self._ask(lambda session: session.use.batch_size, False),
            offers_checkpointing=self._ask(lambda session: session.offers_checkpointing, False),
            replaying=replaying,
            stopped_by=stopped_by,
            stopped_s=stopped_s,
            time=now,
        )
        try:
            save_exit_note(self._rundir, self._attempt, self._rank, note)
        except Exception as error:  # how the script has ended stays
            print(f"supervisor: warning: exit note: {error}", file=sys.stderr)
        return int(code)


def _guarded(call: Callable[[], Any], otherwise: Any) -> Any:
    """Calls what asks objects of the script's at its end, which may raise anything."""
    try:
        return call()
    except BaseException as error:
        pass_on(error)
        with contextlib.suppress(Exception):
            said = f"{type(error).__name__}: {_words_of(error)}"
            print(f"supervisor: warning: at the end: {said}", file=sys.stderr)
        return otherwise


def _leave_now(signum: int, frame: object) -> None:
    raise ExitRequest("interrupted", "SIGTERM")


def _end_pools() -> None:
    """Pools wait for what was given to them, without end."""
    for ends in reversed(getattr(threading, "_threading_atexits", ())):
        ends()


def _threads() -> list[threading.Thread]:
    """Those of the script that python waits for."""
    main = threading.main_thread()
    return [one for one in threading.enumerate() if not one.daemon and one is not main]


def _take_streams(streams: Sequence[str]) -> None:
    """Opens the output of one of several ranks, which the parent keeps apart; input has none."""
    for fd, path in enumerate(streams and (os.devnull, *streams)):
        with contextlib.suppress(OSError):  # then it is the agent's own
            opened = os.open(path, (os.O_WRONLY if fd else os.O_RDONLY) | os.O_NOCTTY)
            os.dup2(opened, fd)
            os.close(opened)


def _hand_over(places: Sequence[str], local_rank: int) -> None:
    """Tells the parent of what the disk refuses through its own memory, where it has any."""
    with contextlib.suppress(OSError, IndexError):
        place = handover.mine = handover.OwnPlace(places[local_rank])
        KEPT.on_refused = lambda path, error: place.refuses(f"{path}: {error.strerror}")
        KEPT.on_written = lambda: place.refuses("")


def _words_of(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:  # the script's own class
        return "<exception str() failed>"


def _memory_facts() -> dict[str, Any]:
    try:
        import psutil
    except Exception:  # the script has left the process in a state in which nothing is imported
        return {}
    facts: dict[str, Any] = {"resident_gib": psutil.Process().memory_info().rss / 2**30}
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        facts["cuda_allocated_gib"] = torch.cuda.memory_allocated() / 2**30
        facts["cuda_peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    return facts


def die_with_parent(parent: int) -> None:
    """The kernel kills this process when the parent dies, so that none is left behind."""
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        return  # not Linux
    if parent and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _write_whole_lines() -> None:
    """Into a pipe Python writes in blocks: lines would come late, and a killed worker would take
    its last ones with it. A variable of the user's decides otherwise."""
    stdout = sys.stdout
    if "PYTHONUNBUFFERED" not in os.environ and hasattr(stdout, "reconfigure"):
        stdout.reconfigure(line_buffering=True)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="supervisor.worker")
    parser.add_argument("--run-dir", required=True)
    parser.add_argument("--attempt", type=int, required=True)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--handover", default="")
    parser.add_argument("--input", default="")
    parser.add_argument("--kind", choices=("script", "function", "module"), required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--function")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    if options.arguments[:1] == ["--"]:
        del options.arguments[0]
    return options
