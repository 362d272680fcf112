"""All kinds of mistakes, in the order of docs/mistakes.md."""

from __future__ import annotations

from supervisor.worker.mistakes.bypassed_wrapper import BypassedWrapper
from supervisor.worker.mistakes.cleared_early import ClearedEarly
from supervisor.worker.mistakes.copied_input import CopiedInput
from supervisor.worker.mistakes.dropout_in_evaluation import DropoutInEvaluation
from supervisor.worker.mistakes.evaluated_in_train import EvaluatedInTrain
from supervisor.worker.mistakes.kept_by_reference import KeptByReference
from supervisor.worker.mistakes.mistake import Mistake
from supervisor.worker.mistakes.never_cleared import NeverCleared
from supervisor.worker.mistakes.never_frozen import NeverFrozen
from supervisor.worker.mistakes.never_graded import NeverGraded
from supervisor.worker.mistakes.nothing_learned import NothingLearned
from supervisor.worker.mistakes.nothing_loaded import NothingLoaded
from supervisor.worker.mistakes.probabilities import Probabilities
from supervisor.worker.mistakes.ranks_apart import RanksApart
from supervisor.worker.mistakes.repeated_epoch import RepeatedEpoch
from supervisor.worker.mistakes.rounded_away import RoundedAway
from supervisor.worker.mistakes.same_batch import SameBatch
from supervisor.worker.mistakes.sees_future import SeesFuture
from supervisor.worker.mistakes.shifted_twice import ShiftedTwice
from supervisor.worker.mistakes.stays_in_eval import StaysInEval
from supervisor.worker.mistakes.stopped_updates import StoppedUpdates
from supervisor.worker.mistakes.stretched_loss import StretchedLoss
from supervisor.worker.mistakes.unchanged_weights import UnchangedWeights
from supervisor.worker.mistakes.untrained import Untrained
from supervisor.worker.mistakes.workers_draw_same import WorkersDrawSame
from supervisor.worker.mistakes.wrong_targets_counted import WrongTargetsCounted

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
