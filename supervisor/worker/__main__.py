"""``python -m supervisor.worker``: one rank of one attempt, started by the parent alone."""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import os
import signal
import sys
import traceback
import types
from typing import Any

from supervisor.storage.files.private_files import open_private
from supervisor.storage.run.exit_notes import ExitNote, save_exit_note
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.run.set_aside import SetAside
from supervisor.worker import current
from supervisor.worker.process.heap_pages import hide_request
from supervisor.worker.process.leaving import WorkerLeaves
from supervisor.worker.process.program import Program
from supervisor.worker.process.start_over import remember_start
from supervisor.worker.process.torch_arrival import TorchArrival

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Runs the program under supervision; returns the process's exit code."""
    options = _parse(arguments)
    remember_start()
    hide_request()
    rundir = RunDirectory(options.run_dir)
    die_with_parent()
    _dump_stacks_on_request(rundir, options.attempt, options.rank)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _undo_unfinished_replay(rundir, options.rank)
    worker = Worker(rundir, options.attempt, options.rank)
    program = Program(
        kind=options.kind,
        target=options.target,
        function=options.function,
        arguments=tuple(options.arguments),
    )
    return worker.run(program)


class Worker:
    """Runs a program and leaves a note of how it ended."""

    def __init__(self, rundir: RunDirectory, attempt: int, rank: int) -> None:
        self._rundir = rundir
        self._attempt = attempt
        self._rank = rank
        self._session: Any = None

    def run(self, program: Program) -> int:
        arrival = TorchArrival(self._torch_is_here)
        arrival.install()
        try:
            program.run(self._make_run)
        except WorkerLeaves as leaving:
            self._end(completed=False)
            note = ExitNote(
                kind=leaving.note, message=leaving.reason, evidence=self._samples_at_fault()
            )
            return self._leave(note, leaving.code)
        except SystemExit as leaving:
            return self._script_exits(leaving)
        except KeyboardInterrupt as error:
            self._show(error)
            self._end(completed=False)
            return self._leave(ExitNote(kind="interrupted", message="KeyboardInterrupt"), 130)
        except BaseException as error:
            self._end(completed=False)
            self._show(error)
            return self._leave(self._exception_note(error), 1)
        return self._script_ended()

    def _torch_is_here(self) -> None:
        """Called when the script has imported torch: supervision begins."""
        from supervisor.worker.start import start_session

        self._session = start_session(self._rundir, self._attempt, self._rank)
        if self._session is not None:
            current.session = self._session

    def _make_run(self) -> Any:
        from supervisor.worker.run import Run

        return Run(self._rundir.root)

    def _script_ended(self) -> int:
        """It came to its end: complete, unless its training was still being fast-forwarded."""
        shortfall = self._session.shortfall if self._session is not None else ""
        if not shortfall:
            self._end(completed=True)
            return self._leave(ExitNote(kind="completed", code=0), 0)
        self._session.warn(shortfall)
        self._end(completed=False)
        return self._leave(ExitNote(kind="short", message=shortfall), 1)

    def _script_exits(self, leaving: SystemExit) -> int:
        code = leaving.code
        if code is None or code == 0:
            return self._script_ended()
        self._end(completed=False)
        if isinstance(code, int):
            return self._leave(ExitNote(kind="system_exit", code=code), code & 0xFF)
        print(code, file=sys.stderr)
        return self._leave(ExitNote(kind="system_exit", code=1, message=str(code)), 1)

    def _end(self, *, completed: bool) -> None:
        if self._session is not None:
            self._session.end(completed=completed)

    def _show(self, error: BaseException) -> None:
        """Prints the traceback as plain python does: without our frames."""
        traceback.print_exception(type(error), error, _users_part(error.__traceback__))

    def _exception_note(self, error: BaseException) -> ExitNote:
        kind = type(error)
        module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        text = traceback.format_exception(kind, error, _users_part(error.__traceback__))
        return ExitNote(
            kind="exception",
            exception=f"{module}{kind.__qualname__}",
            message=str(error)[:2000],
            traceback="".join(text)[-8000:],
            evidence=self._samples_at_fault(),
            phase=self._phase(),
            memory=_memory_facts(),
        )

    def _samples_at_fault(self) -> tuple[str, ...]:
        return self._session.parts.samples.evidence if self._session is not None else ()

    def _phase(self) -> str:
        if self._session is None:
            return "import"
        return "training" if self._session.steps_done else "before_first_step"

    def _leave(self, note: ExitNote, code: Any) -> int:
        import dataclasses
        import time

        last = self._session.steps_done - 1 if self._session is not None else -1
        replaying = self._session is not None and not self._session.has_arrived
        if replaying:
            last = -1
        asks = self._session is not None and self._session.parts.use.batch_size
        note = dataclasses.replace(
            note,
            last_step=last if last >= 0 else None,
            phase=self._phase(),
            asks_batch_size=asks,
            offers_checkpointing=self._session is not None and self._session.offers_checkpointing,
            replaying=replaying,
            time=time.time(),
        )
        try:
            save_exit_note(self._rundir, self._attempt, self._rank, note)
        except OSError as error:
            print(f"supervisor: warning: exit note: {error}", file=sys.stderr)
        return int(code)


def _undo_unfinished_replay(rundir: RunDirectory, rank: int) -> None:
    """Puts the script's files back where an earlier process left its fast-forward half-way."""
    try:
        problems = SetAside(rundir, rank).undo()
    except OSError as error:
        problems = [f"files that a fast-forward set aside: {error}"]
    for problem in problems:
        print(f"supervisor: warning: {problem}", file=sys.stderr)


def _users_part(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Skips the frames between the interpreter and the user's first line."""
    ours = os.path.dirname(os.path.abspath(__file__)) + os.sep
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith((ours, "<frozen ")):
            return trace
        trace = trace.tb_next
    return trace


def _memory_facts() -> dict[str, Any]:
    import psutil

    facts: dict[str, Any] = {"resident_gib": psutil.Process().memory_info().rss / 2**30}
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        facts["cuda_allocated_gib"] = torch.cuda.memory_allocated() / 2**30
        facts["cuda_peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    return facts


def die_with_parent() -> None:
    """The kernel kills this process when the parent dies, so that none is left behind."""
    parent = int(os.environ.get("SUPERVISOR_PARENT_PID", "0"))
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        return  # not Linux
    if parent and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _dump_stacks_on_request(rundir: RunDirectory, attempt: int, rank: int) -> None:
    path = rundir.stacks(attempt, rank)
    rundir.make(path.parent)
    faulthandler.register(signal.SIGUSR2, file=open_private(path, "w"), all_threads=True)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="supervisor.worker")
    parser.add_argument("--run-dir", required=True)
    parser.add_argument("--attempt", type=int, required=True)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--kind", choices=("script", "function", "module"), required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--function")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    if options.arguments[:1] == ["--"]:
        del options.arguments[0]
    return options


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.exit(code)
