"""All kinds of mistakes, in the order of docs/mistakes.md."""

from __future__ import annotations

from supervisor.worker.mistakes.evidence.mistake import Mistake
from supervisor.worker.mistakes.kinds.evaluation import (
    DropoutInEvaluation,
    EvaluatedInTrain,
    StaysInEval,
)
from supervisor.worker.mistakes.kinds.gradients import ClearedEarly, NeverCleared, NeverGraded
from supervisor.worker.mistakes.kinds.loading import RepeatedEpoch, SameBatch, WorkersDrawSame
from supervisor.worker.mistakes.kinds.losses import (
    NothingLearned,
    Probabilities,
    StretchedLoss,
    WrongTargetsCounted,
)
from supervisor.worker.mistakes.kinds.never_frozen import NeverFrozen
from supervisor.worker.mistakes.kinds.ranks import BypassedWrapper, RanksApart
from supervisor.worker.mistakes.kinds.state_dicts import KeptByReference, NothingLoaded
from supervisor.worker.mistakes.kinds.tokens import CopiedInput, SeesFuture, ShiftedTwice
from supervisor.worker.mistakes.kinds.updates import (
    RoundedAway,
    StoppedUpdates,
    UnchangedWeights,
    Untrained,
)

KINDS: tuple[type[Mistake], ...] = (
    Untrained,
    NeverGraded,
    NeverFrozen,
    NeverCleared,
    ClearedEarly,
    StaysInEval,
    EvaluatedInTrain,
    DropoutInEvaluation,
    Probabilities,
    StretchedLoss,
    CopiedInput,
    ShiftedTwice,
    SeesFuture,
    WrongTargetsCounted,
    UnchangedWeights,
    StoppedUpdates,
    RoundedAway,
    SameBatch,
    WorkersDrawSame,
    RepeatedEpoch,
    BypassedWrapper,
    RanksApart,
    KeptByReference,
    NothingLoaded,
    NothingLearned,
)
