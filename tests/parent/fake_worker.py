"""A worker without torch: does what a plan says, through the files that a real worker writes.

The target is a JSON file: attempt → list of commands (``"*"`` for any other attempt).
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from supervisor.records import StepRecord
from supervisor.settings import CheckpointSettings
from supervisor.storage.checkpoints.checkpoints import CheckpointRing
from supervisor.storage.run.exit_notes import ExitNote, save_exit_note
from supervisor.storage.run.mailboxes import SignalTimes
from supervisor.storage.run.run_state import load_order
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_recorder import FlightRecorder
from supervisor.worker.core.process_signs import Heartbeat


class FakeWorker:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.rundir = RunDirectory(arguments.run_dir)
        self.attempt = arguments.attempt
        self.arguments = arguments.script_arguments
        self.recorder = FlightRecorder(self.rundir.steps(0), self.attempt)
        self.order = load_order(self.rundir, self.attempt)

    def steps(self, first: int, last: int, loss: float = 1.0) -> None:
        for step in range(first, last + 1):
            record = StepRecord(step=step, loss=loss, loss_seen=True)
            self.recorder.append(record, time=time.time())

    def checkpoint(self, step: int, stable: bool = False) -> None:
        settings = CheckpointSettings(min_free_gib=0.0, keep_last=100)
        ring = CheckpointRing(self.rundir.checkpoints, settings)
        ring.save(
            step,
            lambda folder: (folder / "state").write_bytes(b"state") and None,
            reason="test",
            meta={},
        )
        if stable:
            ring.mark_stable(step)

    def replay(self, steps: int, seconds: float) -> None:
        """Stands at this step of a fast-forward for a while."""
        heartbeat = Heartbeat(self.rundir.alive(0))
        heartbeat.replayed(steps)
        time.sleep(seconds)

    def note(self, **fields: object) -> None:
        save_exit_note(self.rundir, self.attempt, 0, ExitNote(**fields))

    def exit(self, code: int) -> None:
        os._exit(code)

    def kill(self, signum: int) -> None:
        os.kill(os.getpid(), signum)
        time.sleep(60)

    def hang(self, steps: int = 1) -> None:
        self.rundir.make(self.rundir.stacks(self.attempt, 0).parent)
        file = self.rundir.stacks(self.attempt, 0).open("w")
        faulthandler.register(signal.SIGRTMAX - 1, file=file, all_threads=True)
        SignalTimes(self.rundir.signals(0)).stacks_come_by(signal.SIGRTMAX - 1)
        self.steps(0, steps - 1)
        wait_for_ever()

    def save_on_sigterm(self, checkpoint: bool = True) -> None:
        asked: list[int] = []
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, lambda signum, frame: asked.append(signum))
        self.steps(0, 4)
        (self.rundir.root / "ready").touch()
        while not asked:
            time.sleep(0.01)
        if checkpoint:
            self.checkpoint(4)
        self.note(kind="interrupted", message="asked by SIGTERM", last_step=4)
        os._exit(75)

    def ignore_sigterm(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (self.rundir.root / "ready").touch()
        wait_for_ever()

    def saves_results(self) -> None:
        (self.rundir.root / "ready").touch()
        wait_for_ever()

    def child(self, stubborn: bool = False) -> None:
        handler = "IGN" if stubborn else "DFL"
        code = f"import signal,time; signal.signal(15, signal.SIG_{handler}); print(1, flush=True)"
        child = subprocess.Popen(
            [sys.executable, "-c", f"{code}; time.sleep(600)"], stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        child.stdout.read(1)
        (self.rundir.root / "child.pid").write_text(str(child.pid))

    def daemon(self, stubborn: bool = False) -> None:
        """Starts one by the book: forked twice, a session of its own, known to nobody."""
        ours, theirs = os.pipe()
        middle = os.fork()
        if middle == 0:
            os.setsid()
            if os.fork() == 0:
                if stubborn:
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)
                (self.rundir.root / "daemon.pid").write_text(str(os.getpid()))
                os.write(theirs, b".")
                wait_for_ever()
            os._exit(0)
        os.waitpid(middle, 0)
        os.read(ours, 1)

    def write(self, fd: int, text: str) -> None:
        os.write(fd, text.encode("latin-1"))

    def describe(self) -> None:
        """Leaves what a worker sees of its surroundings."""
        facts = {
            "isatty": [os.isatty(fd) for fd in (0, 1, 2)],
            "size": list(os.get_terminal_size(1)) if os.isatty(1) else None,
            "session": os.getsid(0) == os.getpid(),
            "parent": os.environ.get("SUPERVISOR_PARENT_PID"),
            "real_parent": os.getppid(),
            "unbuffered": os.environ.get("PYTHONUNBUFFERED"),
            "arguments": self.arguments,
        }
        (self.rundir.root / f"facts_{self.attempt}.json").write_text(json.dumps(facts))

    def wait_for_columns(self, columns: int) -> None:
        """Waits until the terminal has that width and its change was announced."""
        announced: list[int] = []
        signal.signal(signal.SIGWINCH, lambda signum, frame: announced.append(signum))
        (self.rundir.root / "ready").touch()
        while not announced or os.get_terminal_size(1).columns != columns:
            time.sleep(0.01)

    def echo_input(self) -> None:
        os.write(1, os.read(0, 100))


def wait_for_ever() -> None:
    while True:
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path)
    parser.add_argument("--attempt", type=int)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--handover")
    parser.add_argument("--input", nargs="*")
    parser.add_argument("--kind")
    parser.add_argument("--target", type=Path)
    parser.add_argument("--function")
    parser.add_argument("script_arguments", nargs="*")
    arguments = parser.parse_args()
    plan = json.loads(arguments.target.read_text())
    worker = FakeWorker(arguments)
    for name, *values in plan.get(str(arguments.attempt), plan.get("*", [])):
        if values and isinstance(values[-1], dict):
            getattr(worker, name)(*values[:-1], **values[-1])
        else:
            getattr(worker, name)(*values)


if __name__ == "__main__":
    main()
