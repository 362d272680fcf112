"""All actions by name."""

from __future__ import annotations

from supervisor.actions.adaptive_clip import AdaptiveClip
from supervisor.actions.back_to_start import BackToStart
from supervisor.actions.base import Action
from supervisor.actions.checkpoint import SaveCheckpoint
from supervisor.actions.checkpoint_activations import CheckpointActivations
from supervisor.actions.cut_lr import CutLr
from supervisor.actions.fp32_fallback import Fp32Fallback
from supervisor.actions.fp32_modules import Fp32Modules
from supervisor.actions.limit_lr import LimitLr
from supervisor.actions.reset_optimizer import ResetOptimizer
from supervisor.actions.restart import Restart
from supervisor.actions.rollback import Rollback, TrialStep
from supervisor.actions.skip_data import SkipData
from supervisor.actions.skip_update import SkipUpdate
from supervisor.actions.smaller_batch import SmallerBatch
from supervisor.actions.stop import Stop
from supervisor.actions.tighten_clip import TightenClip

ACTIONS: tuple[type[Action], ...] = (
    SkipUpdate,
    SaveCheckpoint,
    CutLr,
    LimitLr,
    TightenClip,
    AdaptiveClip,
    CheckpointActivations,
    SmallerBatch,
    SkipData,
    ResetOptimizer,
    Fp32Modules,
    Fp32Fallback,
    TrialStep,
    Rollback,
    BackToStart,
    Restart,
    Stop,
)
"""Mildest first."""


def build_actions() -> dict[str, Action]:
    """Returns one fresh instance of every action by its name; the worker keeps them for the run."""
    return {kind.name: kind() for kind in ACTIONS}
