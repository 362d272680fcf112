"""Builds run directories as the real writers would leave them, for every kind of end."""

from __future__ import annotations

import dataclasses
import math
import socket
from pathlib import Path
from typing import Any

import numpy as np

from supervisor.records import NAN, StepRecord
from supervisor.storage.evidence import AnomalyLog
from supervisor.storage.files.private_files import write_json
from supervisor.storage.journal.journal import Journal
from supervisor.storage.run.run_state import RunState
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_recorder import UPDATE_SKIPPED, FlightRecorder
from tests.journals import event

BEGIN = 1_800_000_000.0
STEP_S = 0.1
DEAD_PID = 2**22 + 7  # beyond the largest number that Linux gives to a process


class SyntheticRun:
    """A run whose clock moves only when a step is taken or `wait` is called."""

    def __init__(self, root: Path, *, seed: int = 0) -> None:
        self.rundir = RunDirectory(root)
        self.rundir.make(self.rundir.root)
        self.now = BEGIN
        self.attempt = 1
        self._noise = np.random.default_rng(seed)
        self.state = RunState(
            command=("supervisor", "run", "train.py", "--lr", "3e-4"),
            script="train.py",
            arguments=("--lr", "3e-4"),
            versions={"python": "3.11.2", "torch": "2.13.0", "training-supervisor": "0.1.0"},
            host=socket.gethostname(),
            pid=DEAD_PID,
            started_at="2027-01-15T08:00:00+00:00",
            policy="default",
            config="default",
        )
        write_json(self.rundir.run_json, self.state)
        self.event("run_started")

    def wait(self, seconds: float) -> SyntheticRun:
        self.now += seconds
        return self

    def event(self, kind: str, *, step: int | None = None, **fields: Any) -> SyntheticRun:
        journal = Journal(self.rundir.journal, attempt=self.attempt, rank=0, clock=lambda: self.now)
        journal.write(event(kind, step=step, **fields))
        journal.close()
        return self

    def start(self, attempt: int, *, from_step: int | None = None, delay_s: float = 3.0) -> None:
        self.attempt = attempt
        self.event("attempt_started", step=from_step, checkpoint_step=from_step)
        self.wait(delay_s)
        if from_step is not None:
            self.event("resumed", step=from_step, from_step=from_step, exactness="exact", reason="")

    def steps(
        self,
        first: int,
        last: int,
        *,
        losses: dict[int, float] | None = None,
        grads: dict[int, float] | None = None,
        risks: dict[int, float] | None = None,
        lrs: dict[int, float] | None = None,
        skipped: frozenset[int] = frozenset(),
        loss_scale: float = NAN,
        memory_gib: float = 1.25,
    ) -> SyntheticRun:
        recorder = FlightRecorder(self.rundir.steps(0), self.attempt)
        for step in range(first, last + 1):
            self.now += STEP_S
            usual = 2.0 + 2.0 * math.exp(-step / 80) + 0.03 * self._noise.standard_normal()
            grad = 1.0 + 0.1 * abs(self._noise.standard_normal())
            record = StepRecord(
                step=step,
                loss=(losses or {}).get(step, usual),
                grad_norm=(grads or {}).get(step, grad),
                lr=(lrs or {}).get(step, 3e-4 * min(1.0, (step + 1) / 40)),
                loss_scale=loss_scale,
                step_time_s=STEP_S,
                batch_size=8,
                memory_gib=memory_gib,
                loss_seen=True,
                grad_norm_seen=True,
            )
            recorder.append(
                record,
                time=self.now,
                risk=(risks or {}).get(step, 0.02),
                flags=UPDATE_SKIPPED if step in skipped else 0,
            )
        recorder.close()
        return self

    def checkpoint(self, step: int, *, stable: bool = True) -> SyntheticRun:
        self.event("checkpoint_saved", step=step, path=f"step_{step:08d}", seconds=0.05)
        if stable:
            self.event("checkpoint_stable", step=step)
        return self

    def action(self, name: str, step: int, *, cost_s: float = 0.01, **fields: Any) -> SyntheticRun:
        values = {"rung": 1, "cause": "nonfinite", "outcome": "applied", "applied": True}
        return self.event("action", step=step, name=name, cost_s=cost_s, **{**values, **fields})

    def exit(
        self, cause: str, step: int | None, *, evidence: tuple[str, ...] = (), **f: Any
    ) -> None:
        fields: dict[str, Any] = {"returncode": 1, "signum": None, **f}
        self.event(
            "worker_exited", step=step, cause=cause, last_step=step, evidence=evidence, **fields
        )

    def finish(self, state: str, *, reason: str = "") -> Path:
        self.wait(0.5)
        if state == "gave_up":
            self.event("gave_up", reason=reason)
        self.event("run_finished", state=state, reason=reason)
        self.set_state(state)
        return self.rundir.root

    def set_state(self, state: str) -> None:
        self.state = dataclasses.replace(self.state, state=state, attempts=self.attempt)
        write_json(self.rundir.run_json, self.state)


def healthy(root: Path) -> Path:
    run = SyntheticRun(root)
    run.start(1)
    run.steps(0, 99)
    run.exit("completed", 99, returncode=0)
    return run.finish("completed")


def treated(root: Path) -> Path:
    """NaN at step 120 whose update was left out, SIGKILL after step 200, completed at 299."""
    run = SyntheticRun(root)
    run.start(1)
    run.steps(0, 100).checkpoint(100)
    run.steps(101, 120, losses={120: NAN}, grads={120: NAN}, skipped=frozenset({120}),
              risks={120: 1.0})  # fmt: skip
    run.event("alert", step=120, alert_kind="nonfinite_loss", severity="critical",
              cause="nonfinite", message="The loss is NaN: look at the batch.")  # fmt: skip
    run.event("risk", step=120, probability=1.0, alarm=True, cause="nonfinite", reason="NaN loss")
    run.action("skip_update", 120)
    run.event("update_skipped", step=120, reason="nonfinite")
    run.action("cut_lr", 120, cost_s=0.0, detail="learning rate × 0.5")
    run.steps(121, 170)
    run.event("action", step=170, name="cut_lr", rung=None, cause=None, cost_s=0.0,
              outcome="helped", applied_at=120, phase="verified")  # fmt: skip
    run.checkpoint(170)
    run.steps(171, 195)
    run.event("action_undone", step=195, name="cut_lr")
    run.steps(196, 200).wait(0.05)
    run.exit("killed", 200, returncode=-9, signum=9, evidence=("Ended by SIGKILL from outside.",))
    run.event(
        "restart", step=170, next_attempt=2, delay_s=1.0, reason="killed", checkpoint_step=170
    )
    run.wait(1.0).start(2, from_step=170)
    run.steps(171, 299)
    run.exit("completed", 299, returncode=0)
    log = AnomalyLog(run.rundir, 0, clock=lambda: run.now)
    log.write(
        step=120,
        loss=NAN,
        grad_norm=NAN,
        batch_info={"tokens": {"shape": [8, 128], "path": "tokens.pt"}},
        threshold_info={"loss": {"median": 2.4, "threshold": 2.9, "mean": 2.5}},
        data_dir="anomalies/data/step_120_rank_0",
    )
    log.close()
    return run.finish("completed")


def gave_up(root: Path) -> Path:
    """An exponential divergence from step 150 on that ended three attempts."""
    run = SyntheticRun(root)
    run.start(1)
    run.steps(0, 100).checkpoint(100)
    climb = {step: 2.1 + 0.2 * 1.35 ** (step - 150) for step in range(150, 176)} | {176: math.inf}
    grads = {step: 1.35 ** (step - 148) for step in range(150, 176)} | {176: math.inf}
    risks = {step: min(0.99, 0.05 * (step - 149)) for step in range(150, 177)}
    for attempt in (1, 2, 3):
        if attempt > 1:
            run.start(attempt, from_step=100)
        run.steps(101, 176, losses=climb, grads=grads, risks=risks)
        run.event("alert", step=158, alert_kind="divergence", severity="high", cause="divergence",
                  message="The loss rises 30 % a step.")  # fmt: skip
        run.event("risk", step=160, probability=0.55, alarm=True, cause="divergence",
                  reason="the loss leaves its trend")  # fmt: skip
        run.action("cut_lr", 160, cause="divergence")
        run.exit("nonfinite", 176, returncode=1, evidence=("The policy asked for a restart.",))
        run.event("restart", step=100, next_attempt=attempt + 1, reason="numerical trouble")
        run.wait(2.0**attempt)
    return run.finish("gave_up", reason="3 crashes without progress")


def hung(root: Path) -> Path:
    run = SyntheticRun(root)
    run.start(1)
    run.steps(0, 80).checkpoint(50)
    run.wait(60.0)
    run.event("hang_detected", step=80, seconds_since_step=60.0, limit_s=60.0,
              evidence=["no step for 60 s", "in next_batch (loader.py:12)"])  # fmt: skip
    stacks = run.rundir.stacks(1, 0)
    run.rundir.make(stacks.parent)
    stacks.write_text('Thread 0x01 (most recent call first):\n  File "loader.py", line 12 in get\n')
    run.wait(5.0)
    run.exit("killed", 80, returncode=-9, signum=9, evidence=("Ended by SIGKILL.",))
    return run.finish("gave_up", reason="the same hang three times")


def interrupted(root: Path) -> Path:
    run = SyntheticRun(root)
    run.start(1)
    run.steps(0, 60).checkpoint(60, stable=False)
    run.event("signal_received", signum=15, name="SIGTERM")
    run.exit("interrupted", 60, returncode=75, evidence=("SIGTERM was sent to the supervisor.",))
    return run.finish("interrupted")


def user_error(root: Path) -> Path:
    run = SyntheticRun(root)
    run.start(1)
    run.exit("user_error", None, evidence=("NameError: name 'modle' is not defined",))
    log = run.rundir.log(1, 0)
    run.rundir.make(log.parent)
    log.write_text("Traceback (most recent call last):\nNameError: name 'modle' is not defined\n")
    return run.finish("failed")


def orphaned(root: Path) -> Path:
    """The parent was killed with SIGKILL: nobody wrote an end."""
    run = SyntheticRun(root)
    run.start(1)
    run.steps(0, 90).checkpoint(50)
    return run.rundir.root


def out_of_memory(root: Path) -> Path:
    run = SyntheticRun(root)
    run.start(1)
    run.steps(0, 40, memory_gib=10.0).steps(41, 60, memory_gib=15.5)
    run.exit("out_of_memory", 60, evidence=("torch.OutOfMemoryError: tried to allocate 2 GiB",))
    return run.finish("gave_up", reason="3 crashes without progress")


def empty(root: Path) -> Path:
    root.mkdir(parents=True)
    return root


ALL_ENDS = {
    "healthy": healthy,
    "treated": treated,
    "gave_up": gave_up,
    "hung": hung,
    "interrupted": interrupted,
    "user_error": user_error,
    "orphaned": orphaned,
    "out_of_memory": out_of_memory,
    "empty": empty,
}
