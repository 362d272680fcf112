"""Clips gradients: harder, or at a threshold that follows them."""

from __future__ import annotations

import math
import statistics

from supervisor.actions.base import Action, ActionContext
from supervisor.actions.controls import AdaptiveThreshold
from supervisor.records import ActionResult

USUAL_LIMIT = 2.0
"""A script that does not clip is treated as if it clipped at twice its median norm.

Of eight published logs of healthy trainings, seven exceed twice the median of the last 50 norms in
0 to 0.6 % of their rows, the eighth (speech, DeepSpeech) in 6 %: as a limit it hardly ever acts.
"""

_FEWEST_NORMS = 5


class TightenClip(Action):
    """Multiplies the script's clipping threshold, or gives one to a script that has none.

    That one is `USUAL_LIMIT` x the median of the recent finite norms x `clip_factor`, with the
    default factor of 0.5 the median itself. A threshold from the norms seen is AutoClip's idea
    (Seetharaman et al., MLSP 2020); the median, unlike a mean or a high percentile, is not moved
    by the very spikes that are to be clipped.
    """

    name = "tighten_clip"
    moment = "update"
    cost = "shorter steps where gradients are large"

    def precondition(self, context: ActionContext) -> str | None:
        if context.script_clips or context.controls.clip_norm is not None:
            return None
        if len(_healthy(context)) < _FEWEST_NORMS:
            return "the script does not clip, and too few gradient norms were seen for a threshold"
        return None

    def apply(self, context: ActionContext) -> ActionResult:
        controls, factor = context.controls, context.policy.clip_factor
        if context.script_clips:
            controls.clip_factor *= factor
            return self.done(f"the script's clipping threshold x {controls.clip_factor:g}")
        if controls.clip_norm is None:
            controls.clip_norm = USUAL_LIMIT * statistics.median(_healthy(context))
        controls.clip_norm *= factor
        return self.done(f"gradients are clipped at {controls.clip_norm:.4g}")

    def undo(self, context: ActionContext) -> ActionResult:
        context.controls.clip_factor, context.controls.clip_norm = 1.0, None
        return self.done("clipping is the script's own again")


def _healthy(context: ActionContext) -> list[float]:
    return [norm for norm in context.recent_grad_norms if math.isfinite(norm) and norm > 0]


class AdaptiveClip(Action):
    """Clips at the 99.5th percentile of the last 1,000 norms, never below 1 or above 100.

    For the first 100 norms the threshold is fixed; see `AdaptiveThreshold`.
    """

    name = "adaptive_clip"
    moment = "update"
    cost = "one step in 200 is shortened"

    def precondition(self, context: ActionContext) -> str | None:
        return None if context.controls.adaptive is None else "it is already switched on"

    def apply(self, context: ActionContext) -> ActionResult:
        threshold = AdaptiveThreshold()
        for norm in context.recent_grad_norms:
            threshold.update(norm)
        context.controls.adaptive = threshold
        return self.done(f"gradients are clipped adaptively, now at {threshold.value:.4g}")

    def undo(self, context: ActionContext) -> ActionResult:
        context.controls.adaptive = None
        return self.done("gradients are no longer clipped adaptively")
