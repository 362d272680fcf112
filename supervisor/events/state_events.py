"""Events of the training's state: checkpoints, resumes, what was noticed about it, warnings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from supervisor.codes import Exactness, Found, Warned
from supervisor.events.event import JournalEvent


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class StateFound(JournalEvent):
    """Something was noticed about the training or its state: `found` says what.

    Attributes:
        detail, message: in words; a `message` that is `aloud` is told at the terminal, too.
        world_size: of several ranks.
        loss, recorded_loss: of a step after a resume.
        files, count: those set aside: the first ones, and how many.
        before_step: of an exact retry: the step of its checkpoint.
        updates, forwards, cost_s, overhead, compiled: of the looks inside the model; of the compute
            check steps, seconds and share of the time, with the operators as `count`.
    """

    KIND: ClassVar[str] = "state_found"
    found: Found | None
    detail: str | None = None
    message: str | None = None
    aloud: bool = False
    world_size: int | None = None
    loss: float | None = None
    recorded_loss: float | None = None
    files: tuple[str, ...] | None = None
    count: int | None = None
    before_step: int | None = None
    updates: int | None = None
    forwards: int | None = None
    cost_s: float | None = None
    overhead: float | None = None
    compiled: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CheckpointSaved(JournalEvent):
    """A checkpoint was written.

    Attributes:
        path: its folder's name.
        bytes: its size on disk.
        seconds: how long the writing took.
        abandoned: it is kept aside: the run has gone another way since.
        command: how to go back to an abandoned one.
    """

    KIND: ClassVar[str] = "checkpoint_saved"
    path: str
    reason: str
    bytes: int | None
    seconds: float
    abandoned: bool = False
    command: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CheckpointStable(JournalEvent):
    """The training stayed healthy for long enough after this checkpoint."""

    KIND: ClassVar[str] = "checkpoint_stable"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CheckpointRejected(JournalEvent):
    """A checkpoint is damaged, or does not fit, and is not used."""

    KIND: ClassVar[str] = "checkpoint_rejected"
    reason: str
    path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Resumed(JournalEvent):
    """The state of a checkpoint was put back and the training goes on.

    Attributes:
        reason: why it is `exactness`.
        order: why this checkpoint.
        replayed_steps: how many the fast-forward made.
        batches_left_out: how many it did not load.
        compared: how many values of the state were equal, put back, different, out of reach.
        replayed_step_s: seconds that a step of the fast-forward took at its end.
    """

    KIND: ClassVar[str] = "resumed"
    from_step: int | None
    exactness: Exactness | None
    reason: str
    order: str
    replayed_steps: int | None
    batches_left_out: int | None
    compared: Mapping[str, Any] | None = None
    replayed_step_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Healed(JournalEvent):
    """A rank that died came back alone, in the middle of a step; no other rank went back.

    Attributes:
        from_step: of the state in memory from which it came back.
        waited_s: from its death until all ranks were together again.
        answered: collectives and messages that were taken from its log.
    """

    KIND: ClassVar[str] = "healed"
    from_step: int | None
    waited_s: float
    answered: int | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class WarningEvent(JournalEvent):
    """Something went wrong outside the training, or a user should know of something.

    Attributes:
        aloud: told at the terminal, too.
        trace: of an error of ours.
        found: the code of what it reports, if a reader needs one.
        loss, recorded_loss: of a step after a resume.
        pruned: steps of the checkpoints that `supervisor prune` deleted.
    """

    KIND: ClassVar[str] = "warning"
    message: str
    aloud: bool = False
    trace: str | None = None
    found: Warned | None = None
    loss: float | None = None
    recorded_loss: float | None = None
    pruned: tuple[int, ...] | None = None
