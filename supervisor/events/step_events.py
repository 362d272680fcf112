"""Events of the training's steps: how they were judged, and what was done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from supervisor.codes import ActionOutcome, Cause, DecisionSource, Phase, Severity, Subject
from supervisor.events.event import JournalEvent


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AlertEvent(JournalEvent):
    """A detector has something to say; the fields are those of `records.Alert`.

    Attributes:
        fact: the message without its advice; empty where it is all fact.
        places: tensors or modules that it is about, the most telling first.
    """

    KIND: ClassVar[str] = "alert"
    detector: str
    severity: Severity | None
    category: str
    cause: Cause | None
    message: str
    value: float
    threshold: float
    metadata: Mapping[str, Any]
    alert_kind: str
    subject: Subject | None = None
    fact: str = ""
    places: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RiskEvent(JournalEvent):
    """The risk rose through a line of the policy; the fields are those of `CrashRisk`."""

    KIND: ClassVar[str] = "risk"
    probability: float
    calibrated: float
    reason: str
    cause: Cause | None
    contributions: Mapping[str, float]
    alarm: bool | None
    onset_step: int | None
    subject: Subject | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ActionEvent(JournalEvent):
    """A treatment was made, refused or only considered, or (`phase`) its outcome became known.

    Attributes:
        applied: False if nothing was done.
        detail: what was done, in a sentence; `reason`: why.
        fields: figures of the action's own.
        applied_at: of a verified one, the step of the action that it is about.
    """

    KIND: ClassVar[str] = "action"
    name: str
    rung: int | None
    cause: Cause | None
    cost_s: float
    outcome: ActionOutcome | None
    applied: bool | None = None
    detail: str | None = None
    reason: str | None = None
    source: DecisionSource | None = None
    risk: float | None = None
    fields: Mapping[str, Any] | None = None
    applied_at: int | None = None
    phase: Phase | None = None
    subject: Subject | None = None

    @property
    def is_verdict(self) -> bool:
        """Whether it reports the later outcome of an action, instead of an action."""
        return self.phase is Phase.VERIFIED


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ActionUndone(JournalEvent):
    """A treatment was taken back."""

    KIND: ClassVar[str] = "action_undone"
    name: str
    cause: Cause | None
    detail: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RollbackEvent(JournalEvent):
    """An older state was put back within the process.

    Attributes:
        name: of the action.
        before_step: the step that is trained next, by the count of steps.
    """

    KIND: ClassVar[str] = "rollback"
    from_step: int | None
    to_step: int | None
    cause: Cause | None
    name: str
    before_step: int | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class UpdateSkipped(JournalEvent):
    """An update was left out."""

    KIND: ClassVar[str] = "update_skipped"
    reason: str
    source: DecisionSource | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class BatchCaptured(JournalEvent):
    """The batch of an anomalous step was kept, in a folder of ``anomalies/data``."""

    KIND: ClassVar[str] = "batch_captured"
    path: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CorruptionFound(JournalEvent):
    """A tensor holds values that no computation could have given.

    Attributes:
        bit: the one that flipped, if it is known.
        healed: ``in_place``, ``rollback`` or ``no``.
        index: of the worst element.
        from_step: of the last look, which it had passed.
        rule: what it breaks: ``moved``, ``still``, ``fell``, ``negative``, ``pair``, ``memory``,
            ``counter``, ``not finite``, ``average``, ``statistic``, ``replica``; ``compute``: an
            operator's result, where `before` is what it gives when it is calculated again.
        ranks: of a replica: those that hold something else than most; empty if no majority does.
    """

    KIND: ClassVar[str] = "corruption_found"
    tensor: str
    elements: int | None
    value: float
    before: float
    bound: float
    bit: int | None
    healed: str
    index: tuple[int, ...] = ()
    from_step: int | None = None
    rule: str = ""
    ranks: tuple[int, ...] = ()
