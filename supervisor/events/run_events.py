"""Events of the run and its processes, written by the parent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.codes import ExitCause, ExitSign
from supervisor.events.event import JournalEvent


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RunStarted(JournalEvent):
    """A run begins, or its continuation by `supervisor resume`."""

    KIND: ClassVar[str] = "run_started"
    command: tuple[str, ...]
    target: str
    arguments: tuple[str, ...]
    is_resume: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AttemptStarted(JournalEvent):
    """A worker is launched; the fields are those of its `WorkerOrder`."""

    KIND: ClassVar[str] = "attempt_started"
    checkpoint_step: int | None
    way: str
    reason: str
    skip_steps: tuple[int, ...]
    lr_factor: float
    fp32: bool
    batch_factor: float
    checkpoint_activations: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class HangDetected(JournalEvent):
    """The watchdog found that the worker hangs.

    Attributes:
        frames: where its main thread stood, the innermost first.
        stacks: file with the stacks of all threads, below the run directory.
    """

    KIND: ClassVar[str] = "hang_detected"
    seconds_since_step: float
    limit_s: float
    frames: tuple[str, ...]
    stacks: str
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class WorkerExited(JournalEvent):
    """A worker process ended.

    Attributes:
        evidence: sentences, the most important first.
        retry: another attempt may help.
        risk, risk_reason, risky, onset_step: of the parent's copy of the pipeline at the last step.
        sign, asked_bytes, device: what else is known, see `WorkerExit`.
    """

    KIND: ClassVar[str] = "worker_exited"
    cause: ExitCause | None
    returncode: int | None
    signum: int | None
    last_step: int | None
    evidence: tuple[str, ...]
    retry: bool
    risk: float | None = None
    risk_reason: str | None = None
    risky: bool | None = None
    onset_step: int | None = None
    sign: ExitSign | None = None
    asked_bytes: int | None = None
    device: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RestartEvent(JournalEvent):
    """Another attempt was decided upon, from `checkpoint_step` or from nothing."""

    KIND: ClassVar[str] = "restart"
    next_attempt: int | None
    delay_s: float
    reason: str
    way: str
    checkpoint_step: int | None
    skip_steps: tuple[int, ...]
    lr_factor: float
    batch_factor: float
    checkpoint_activations: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SignalReceived(JournalEvent):
    """The parent was asked to end, and gives the worker `grace_s` for it; None: the script has a
    handler, and may train on."""

    KIND: ClassVar[str] = "signal_received"
    signum: int | None
    name: str
    grace_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class GaveUp(JournalEvent):
    """No further attempt is made, though the training is not at its end."""

    KIND: ClassVar[str] = "gave_up"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RunFinished(JournalEvent):
    """The run is over; `state` as in run.json."""

    KIND: ClassVar[str] = "run_finished"
    state: str
    exit_code: int | None
    reason: str
    attempts: int | None
