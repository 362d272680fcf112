"""The words everything here speaks: what was seen of a step, what is thought of it, what is done.

Plain frozen records without behaviour of their own. Nothing here imports torch, reads a clock or
touches a file, so that the live run, `backtest`, `explain` and the tests share them.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from supervisor.codes import Cause as Cause
from supervisor.codes import DecisionSource, ExitSign, OutsideCause, Subject
from supervisor.codes import ExitCause as ExitCause
from supervisor.codes import Severity as Severity

NAN = math.nan


@dataclass(slots=True, kw_only=True)
class StepRecord:
    """What was seen of one step: one update of the main optimizer, just before it is applied.

    Nobody changes one; it is not frozen only because that makes it four times as costly to make.

    A value that was not seen is NaN with its ``has_``-property false; NaN that *was* seen is told
    apart by the ``nonfinite_`` fields, which are set by whoever saw the value.

    Attributes:
        step: number of the update, from 0, counted over the whole run (replays included once).
        loss: sum of the scalars on which ``backward`` was called since the last update, mean over
            micro-batches is the user's business. NaN if none was seen, or if it was NaN.
        grad_norm: global L2 norm of the gradients before clipping, unscaled.
        lr: learning rate of the main optimizer's first parameter group, without our factor.
        loss_scale: scale of the GradScaler; NaN without one.
        step_time_s: seconds from the last step's record to this one.
        batch_size: first dimension of the first tensor given to the root forward; 0 if unknown.
        memory_gib: peak of the CUDA allocator, or resident memory of the process on CPU.
        clips_at: the bound of the script's own `clip_grad_norm_` on all of these gradients, so that
            no more of the norm than this reaches the weights; infinity where it does not clip.
        loss_seen, grad_norm_seen: whether the value was observed at all.
        scaler_skipped: the GradScaler left this update out because of an overflow.
        others_trained: another optimizer stepped after a backward of its own since the last
            record, as a GAN's generator does: `loss` is the sum of what several players want.
        begins_training: the first of another training in the same process, with an optimizer of
            its own: what came before says nothing about it.
        announced: the script said with `supervisor.announce` that from this step on something is
            different on purpose: levels seen before are no yardstick any more.
        restarted: a log's first row after a resume: its loss is compared with the level before it.
        in_environment: the data come from an environment that the model acts in (reinforcement
            learning).
        observed: what the user gave with `supervisor.observe`, and what sampling probes saw.
    """

    step: int
    loss: float = NAN
    grad_norm: float = NAN
    lr: float = NAN
    loss_scale: float = NAN
    step_time_s: float = NAN
    batch_size: int = 0
    memory_gib: float = NAN
    clips_at: float = math.inf
    loss_seen: bool = False
    grad_norm_seen: bool = False
    scaler_skipped: bool = False
    others_trained: bool = False
    begins_training: bool = False
    announced: bool = False
    restarted: bool = False
    in_environment: bool = False
    observed: Mapping[str, float] = field(default_factory=dict)

    @property
    def has_moving_objective(self) -> bool:
        """Whether what it learns changes what it learns from (`prediction.moving_objective`)."""
        return self.in_environment or self.others_trained

    @property
    def has_nonfinite_loss(self) -> bool:
        return self.loss_seen and not math.isfinite(self.loss)

    @property
    def has_nonfinite_grad(self) -> bool:
        return self.grad_norm_seen and not math.isfinite(self.grad_norm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """What a detector has to say about a step.

    Attributes:
        detector: name of the detector, as in the config.
        severity: see `Severity`.
        category: group for summaries: ``loss``, ``gradient``, ``precision``, ``learning_rate``,
            ``convergence``, ``collapse``, ``reward``, ``resources``, ``data``, ``mistake``.
        kind: what exactly, in snake case: ``nonfinite_loss``, ``loss_spike``, ``grad_vanishing``.
        cause: which kind of trouble this is evidence for.
        message: one sentence with the figures, and what to look at.
        step: the step that was judged.
        value, threshold: what was measured and the line it crossed (may be NaN).
        subject: the figure that the message begins with; None for others.
        fact: the message without what to look at; empty where it is the whole message.
        metadata: further figures; JSON-serialisable.
    """

    detector: str
    severity: Severity
    category: str
    kind: str
    cause: Cause
    message: str
    step: int
    value: float = NAN
    threshold: float = NAN
    metadata: Mapping[str, Any] = field(default_factory=dict)
    subject: Subject | None = None
    fact: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {f.name: plain(getattr(self, f.name)) for f in dataclasses.fields(self)}


@dataclass(slots=True, kw_only=True)
class CrashRisk:
    """How near a crash within `horizon_steps` is, explained. Nobody changes one.

    Attributes:
        probability: 0...1, the risk on whose scale policies have their lines.
        calibrated: share of such steps of the corpus that a crash followed within the horizon.
        contributions: signal name → its own probability; the largest is the main reason.
        cause: which kind of trouble the largest contribution is evidence for.
        reason: one short sentence.
        warning: the snapshot tier fired (cheap reaction, may be wrong).
        alarm: the treat tier fired (costly reaction).
        onset_step: first step at which this trouble was visible; equals the step when sudden.
        subject: the figure that `reason` begins with; None for others.
    """

    step: int
    probability: float
    contributions: Mapping[str, float] = field(default_factory=dict)
    cause: Cause = Cause.OTHER
    reason: str = ""
    warning: bool = False
    alarm: bool = False
    onset_step: int = -1
    horizon_steps: int = 20
    calibrated: float = 0.0
    subject: Subject | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What the ladder wants done at this step, in this order.

    Attributes:
        actions: names of actions (`skip_update`, `checkpoint`, `cut_lr`, `tighten_clip`,
            `fp32_fallback`, `rollback`, `reset_optimizer`, `restart`, `stop`, ...).
        undo: names of actions to take back, before the new ones are applied.
        rung: index of the ladder's rung, -1 for the guard, -2 when it only undoes.
        cause, reason, risk: why.
        onset_step: rollback must go to before this step.
        dry_run: policy `observe_only`: say it, do not do it.
        lr_limit: for `limit_lr`: the highest learning rate that is allowed; NaN for none.
        source: who chose it.
        subject: the figure that `reason` begins with; None for others.
    """

    step: int
    actions: tuple[str, ...]
    undo: tuple[str, ...] = ()
    rung: int = -1
    cause: Cause = Cause.OTHER
    reason: str = ""
    risk: float = 0.0
    onset_step: int = -1
    dry_run: bool = False
    lr_limit: float = NAN
    source: DecisionSource = DecisionSource.POLICY
    subject: Subject | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionResult:
    """What an action did (event ``action``).

    Attributes:
        name: the action.
        applied: False when its precondition failed; `detail` says which.
        cost_s: seconds the training stood still for it.
        detail: one sentence.
        to_step: for a rollback, the step whose state was restored; else -1.
        skips_update: the update of the judged step is to be left out.
        fields: further fields of the journal line.
    """

    name: str
    applied: bool
    cost_s: float = 0.0
    detail: str = ""
    to_step: int = -1
    skips_update: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerExit:
    """How one attempt of one rank ended, with the evidence (event ``worker_exited``).

    `asks_batch_size` says that the script calls `supervisor.batch_size`: it can train in smaller
    microbatches. `offers_checkpointing` says that a model can compute its activations again.
    `sign` is what else is known of the end; `asked_bytes` how much memory was asked for at once;
    `rank` which of several ranks began it, `following` those whose errors tell of it; `outside` why
    the data are not to blame, if not they; `stopped_by` the signal by which it was interrupted;
    `device` the one whose hardware failed.
    """

    cause: ExitCause
    returncode: int | None = None
    signum: int | None = None
    last_step: int | None = None
    evidence: tuple[str, ...] = ()
    retry: bool = True
    asks_batch_size: bool = False
    offers_checkpointing: bool = False
    sign: ExitSign | None = None
    asked_bytes: int | None = None
    rank: int | None = None
    following: tuple[int, ...] = ()
    outside: OutsideCause | None = None
    stopped_by: int | None = None
    device: str | None = None


REPLAY = "replay"
LOADS_ALL = "replay, all loaded"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOrder:
    """What the parent tells a new worker: ``RUN/orders/attempt_<n>.json``.

    Attributes:
        attempt: from 1.
        checkpoint_step: step of the checkpoint to start from; None starts from nothing.
        reason: why this checkpoint (one sentence for the event ``resumed``).
        skip_steps: steps whose update is to be left out when they come again (same failure twice).
        lr_factor: conservative learning-rate factor to begin with (1.0 = none).
        careful_steps: how many steps the conservative settings last.
        fp32: begin with the FP32 fallback switched on.
        batch_factor: by which `supervisor.batch_size` multiplies from the start on, at most.
        checkpoint_activations: switch on the activation checkpointing that models offer.
        resigned: restarts have not helped: only values that are not finite are treated any more.
        most_copies: of the state that may be held in memory; None for as many as there is room for.
        retry_until: this is an exact retry of the steps up to this one; None if it is none.
        retry_of: the attempt whose steps they were.
        retries: so far in this run, this one included.
        failures: of the last attempts, by which machines ended this run (`failures_seen`).
        trained_s: for how long those attempts had trained together.
        experiment: what a controlled replay changes (`supervisor explain`); empty in every run.
        way: how it comes back to the checkpoint: by `REPLAY`, by one that leaves no loading out
            (`LOADS_ALL`), or ``approximate`` (the state is put back at once).
    """

    attempt: int
    checkpoint_step: int | None = None
    way: str = REPLAY
    reason: str = ""
    skip_steps: tuple[int, ...] = ()
    lr_factor: float = 1.0
    careful_steps: int = 0
    fp32: bool = False
    batch_factor: float = 1.0
    checkpoint_activations: bool = False
    resigned: bool = False
    most_copies: int | None = None
    retry_until: int | None = None
    retry_of: int = 0
    retries: int = 0
    failures: int = 0
    trained_s: float = 0.0
    experiment: Mapping[str, Any] = field(default_factory=dict)


def plain(value: Any) -> Any:
    """Returns `value` as what `json` can write: enums by value, mappings and sequences copied."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    return str(value)


class Plain:
    """A dataclass that JSON can write."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields by their names, as what `json` can write."""
        fields: dict[str, Any] = plain(self)
        return fields


def strict(value: Any) -> Any:
    """Returns `value` with NaN and infinities as ``"nan"``, ``"inf"`` and ``"-inf"``."""
    if isinstance(value, dict):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, list):
        return [strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
