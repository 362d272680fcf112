"""All kinds of mistakes, in the order of docs/mistakes.md."""

from __future__ import annotations

from supervisor.worker.mistakes.evidence.mistake import Mistake
from supervisor.worker.mistakes.kinds.bypassed_wrapper import BypassedWrapper
from supervisor.worker.mistakes.kinds.cleared_early import ClearedEarly
from supervisor.worker.mistakes.kinds.copied_input import CopiedInput
from supervisor.worker.mistakes.kinds.dropout_in_evaluation import DropoutInEvaluation
from supervisor.worker.mistakes.kinds.evaluated_in_train import EvaluatedInTrain
from supervisor.worker.mistakes.kinds.kept_by_reference import KeptByReference
from supervisor.worker.mistakes.kinds.never_cleared import NeverCleared
from supervisor.worker.mistakes.kinds.never_frozen import NeverFrozen
from supervisor.worker.mistakes.kinds.never_graded import NeverGraded
from supervisor.worker.mistakes.kinds.nothing_learned import NothingLearned
from supervisor.worker.mistakes.kinds.nothing_loaded import NothingLoaded
from supervisor.worker.mistakes.kinds.probabilities import Probabilities
from supervisor.worker.mistakes.kinds.ranks_apart import RanksApart
from supervisor.worker.mistakes.kinds.repeated_epoch import RepeatedEpoch
from supervisor.worker.mistakes.kinds.rounded_away import RoundedAway
from supervisor.worker.mistakes.kinds.same_batch import SameBatch
from supervisor.worker.mistakes.kinds.sees_future import SeesFuture
from supervisor.worker.mistakes.kinds.shifted_twice import ShiftedTwice
from supervisor.worker.mistakes.kinds.stays_in_eval import StaysInEval
from supervisor.worker.mistakes.kinds.stopped_updates import StoppedUpdates
from supervisor.worker.mistakes.kinds.stretched_loss import StretchedLoss
from supervisor.worker.mistakes.kinds.unchanged_weights import UnchangedWeights
from supervisor.worker.mistakes.kinds.untrained import Untrained
from supervisor.worker.mistakes.kinds.workers_draw_same import WorkersDrawSame
from supervisor.worker.mistakes.kinds.wrong_targets_counted import WrongTargetsCounted

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
