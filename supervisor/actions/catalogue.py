"""All actions by name."""

from __future__ import annotations

from supervisor.actions.back_to_start import BackToStart
from supervisor.actions.base import Action
from supervisor.actions.batches import SkipData, SmallerBatch
from supervisor.actions.checkpoint_activations import CheckpointActivations
from supervisor.actions.clipping import AdaptiveClip, TightenClip
from supervisor.actions.fp32 import Fp32Fallback, Fp32Modules
from supervisor.actions.optimizer import CutLr, LimitLr, ResetOptimizer
from supervisor.actions.requests import Restart, SaveCheckpoint, SkipUpdate, Stop
from supervisor.actions.rollback import Rollback, TrialStep

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
