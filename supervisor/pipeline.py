"""Record → detectors → risk → decision: the pure heart that the live run and backtest share."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from supervisor.detectors.base import Detector
from supervisor.detectors.registry import build_detectors
from supervisor.detectors.statistics import changes as script_change
from supervisor.detectors.statistics.changes import SHIFT, OtherData, RateTest
from supervisor.ladder.escalation import EscalationLadder
from supervisor.ladder.rollback_evaluation import LOOK_BACK, RollbackEvaluation
from supervisor.ladder.treatments import TreatmentOutcome
from supervisor.ladder.trial_steps import LEVELS, TrialAnswer, answer_of, is_trial, level_of
from supervisor.prediction.moving_objective import MovingObjective
from supervisor.prediction.predictor import CrashPredictor
from supervisor.records import ActionResult, Alert, CrashRisk, Decision, StepRecord
from supervisor.risk_lines import RiskLines
from supervisor.settings import PolicySettings, RunSettings
from supervisor.storage.cases.case_advisor import CaseAdvisor

_NO_SCORES: Mapping[str, float] = {}


@dataclass(slots=True, kw_only=True)
class Judgement:
    """What the pipeline thinks of one step; the ladder fills in its part last.

    Attributes:
        record: the step.
        alerts: what the detectors had to say.
        risk: the predictor's probability with its reasons.
        decision: what is to be done, or None.
        outcomes: of the treatments whose verification ended at this step.
        errors: detectors that raised and were switched off at this step, with the reason.
        tests_rollback: the steps behind a rollback are being compared with those before it: no
            further one until they are.
        needless_rollback: the weights were not to blame (`RollbackEvaluation`): why, in a
            sentence; the record then counts as announced.
        trial: what a trial step has said; `trial_says`: in a sentence. Where the level is another
            one, the record counts as announced.
        other_data: the loss rises with inputs of another distribution (`OtherData`): the same.
        script_change: the loss rises with what the script does to weights itself: the same.
        reinforcement: why the run is one of reinforcement learning, where that becomes known.
        rate_test: what is said at the first step that `tests_rates`.
        tests_rates: the script raises its learning rate until it diverges (`RateTest`): nothing is
            decided about such a step, and the record counts as announced.
    """

    record: StepRecord
    alerts: tuple[Alert, ...]
    risk: CrashRisk
    decision: Decision | None = None
    outcomes: tuple[TreatmentOutcome, ...] = ()
    errors: tuple[str, ...] = ()
    tests_rollback: bool = False
    needless_rollback: str = ""
    trial: TrialAnswer | None = None
    trial_says: str = ""
    other_data: str = ""
    script_change: str = ""
    reinforcement: str = ""
    rate_test: str = ""
    tests_rates: bool = False

    @property
    def is_calm(self) -> bool:
        """Whether nothing was thought of this step."""
        adopted = self.needless_rollback or self.other_data or self.script_change
        said = adopted or self.rate_test or self.trial_says or self.reinforcement
        return not (self.risk.probability or self.alerts or self.errors or said)


class Pipeline:
    """Judges every step; the same records give the same judgements, to the bit.

    Args:
        settings: the config; its ``detectors`` section says what watches.
        policy: what to do about trouble.
        extra_detectors: detectors registered by the user's code.
        advisor: knows what helped in earlier runs; None for the policy alone.

    Raises:
        ConfigError: the ``detectors`` section is wrong.
    """

    def __init__(
        self,
        settings: RunSettings,
        policy: PolicySettings,
        *,
        extra_detectors: Sequence[Detector] = (),
        advisor: CaseAdvisor | None = None,
    ) -> None:
        self.policy = policy
        self.detectors = [*build_detectors(settings.detectors), *extra_detectors]
        self.lines = RiskLines.of(policy)
        self.predictor = CrashPredictor(self.lines)
        self.ladder = EscalationLadder(policy)
        self._advisor = advisor
        self._copies: deque[_Copy] = deque(maxlen=COPIES)
        self._announced_at = -1
        self._evaluation = RollbackEvaluation()
        self._other_data = OtherData()
        self._rate_test = RateTest()
        self._objective = MovingObjective(settings.in_environment)

    def update(self, record: StepRecord) -> Judgement:
        """Judges one step, before its update is applied. Never raises for a detector's fault."""
        return next(self.update_all((record,)))

    def update_all(self, records: Sequence[StepRecord]) -> Iterator[Judgement]:
        """Judges several steps in their order; each decision is made when it is asked for.

        The judgements are those of `update` one by one. It is cheaper, because one detector after
        another runs through all steps while its code and data are in the processor's caches.
        """
        for judgement in self.look_at(records):
            yield self.decide_on(judgement)

    def look_at(self, records: Sequence[StepRecord]) -> list[Judgement]:
        """What detectors and predictor think of some steps.

        Each result must go through `decide_on`, in the same order.
        """
        test = self._rate_test
        tests_rates: dict[int, str] = {}
        recognised: dict[int, str] = {}
        marked = []
        for index, seen in enumerate(records):
            record, why = self._objective.mark(seen)
            marked.append(record)
            if why:
                recognised[index] = why
            if test.update(record.lr):
                marked[index] = replace(record, announced=True)
                if test.is_on:
                    tests_rates[index] = test.reason
        found = self._look_at_parts(marked)
        for index, reason in tests_rates.items():
            found[index].tests_rates, found[index].rate_test = True, reason
        for index, why in recognised.items():
            found[index].reinforcement = why
        return found

    def _look_at_parts(self, records: Sequence[StepRecord]) -> list[Judgement]:
        found: list[Judgement] = []
        first = 0
        for index in range(1, len(records) + 1):
            if index == len(records) or self._begins_part(records[index], index - first):
                found += self._look_at_part(records[first:index])
                first = index
        return found

    def decide_on(self, judgement: Judgement) -> Judgement:
        """Fills in what the ladder decides about a step that was looked at."""
        if judgement.tests_rates:
            return judgement
        record, alerts, risk = judgement.record, judgement.alerts, judgement.risk
        if judgement.trial is not None:
            says = judgement.trial_says
            judgement.decision = self.ladder.trial_answered(record, risk, judgement.trial, says)
            if judgement.decision is not None:
                return judgement
        advice = self._advisor.update(record, alerts, risk) if self._advisor else {}
        if judgement.needless_rollback:
            self.ladder.rollback_was_needless()
        self.ladder.waits_for_evaluation = judgement.tests_rollback
        judgement.decision = self.ladder.decide(record, alerts, risk, advice)
        judgement.outcomes = self.ladder.outcomes
        return judgement

    def level_at(self, step: int) -> float:
        """The loss that the weights of `step` had at their time; NaN where it is not known."""
        seen = [record for copy in self._copies for record in copy.since]
        low = level_of([r.loss for r in seen if step - LEVELS <= r.step <= step])
        if math.isnan(low):  # before a resume, perhaps: those right before the leap stand for them
            low = level_of(self.ladder.trials.usual[-LEVELS:])
        return low

    def _look_at_part(self, records: Sequence[StepRecord]) -> list[Judgement]:
        answer, says = answer_of(records[0]) if is_trial(records[0]) else (None, "")
        needless = self._evaluation.update(records[0]) if self._evaluation.is_on else ""
        other_data = self._other_data.update(records[0])
        changed = script_change.told(records[0])
        if needless or other_data or changed or answer is TrialAnswer.CHANGED:
            records = [replace(records[0], announced=True), *records[1:]]
        if records[0].begins_training:
            self._begin()
        if records[0].restarted:
            self.resumed(records[0].step)
        if records[0].begins_training or self._is_copy_due():
            self._copies.append(_Copy(records[0].step, self._view(), []))
        self._copies[-1].since.extend(records)
        # By the place of the step among the records; most steps have nothing of it.
        alerts: defaultdict[int, list[Alert]] = defaultdict(list)
        errors: defaultdict[int, list[str]] = defaultdict(list)
        scores: defaultdict[int, dict[str, float]] = defaultdict(dict)
        if records[0].announced:
            self._announced_at = records[0].step
            errors[0] += self._forget_levels()
        nothing_observed = not any(record.observed for record in records)
        for detector in self.detectors:
            if nothing_observed and detector.observed_only and not detector.score:
                continue
            index = 0
            update = detector.update
            try:
                for index, record in enumerate(records):
                    alert = update(record)
                    if detector.score:
                        scores[index][detector.name] = float(detector.score)
                    if alert is not None:
                        alerts[index].append(alert)
            except Exception as error:  # a user's detector may do anything
                errors[index].append(self._switch_off(detector, error))
        predict = self.predictor.update
        self.predictor.waits = self._other_data.waits
        found = [
            Judgement(
                record=record,
                alerts=tuple(alerts.get(index, ())),
                risk=predict(record, scores.get(index, _NO_SCORES)),
                errors=tuple(errors.get(index, ())),
            )
            for index, record in enumerate(records)
        ]
        found[0].needless_rollback = needless
        found[0].trial, found[0].trial_says = answer, says
        found[0].other_data = other_data
        found[0].script_change = changed
        found[0].tests_rollback = self._evaluation.is_on
        return found

    def _switch_off(self, detector: Detector, error: Exception) -> str:
        self.detectors = [d for d in self.detectors if d is not detector]
        return f"{detector.name}: {type(error).__name__}: {error}: switched off"

    def _forget_levels(self) -> list[str]:
        """Adopts an announced change; returns which detectors could not."""
        failed = []
        for detector in self.detectors:
            try:
                detector.forget_levels()
            except Exception as error:  # a user's detector may do anything
                failed.append(self._switch_off(detector, error))
        self.predictor.forget_levels()
        return failed

    def _begins_part(self, record: StepRecord, waiting: int) -> bool:
        if record.announced or record.begins_training or record.restarted:
            return True
        seen = record.observed
        is_news = seen and (is_trial(record) or SHIFT in seen or script_change.CHANGE in seen)
        if is_news or self._other_data.waits or self._evaluation.is_on:
            return True
        return self._is_copy_due(waiting)

    def _is_copy_due(self, waiting: int = 0) -> bool:
        return not self._copies or len(self._copies[-1].since) + waiting >= COPY_EVERY

    def _begin(self) -> None:
        """Forgets all windows."""
        self._copies.clear()
        self._other_data.reset()
        for detector in self.detectors:
            detector.reset()
        self.predictor.reset()

    def resign(self) -> None:
        """Nothing has helped: only values that are not finite are treated any more."""
        self.ladder.resign()

    def found_corruption(self, since_step: int) -> None:
        """The state was damaged after this step, and is healed: no treatment since has helped."""
        self.ladder.found_corruption(since_step)

    def settle(self, result: ActionResult) -> None:
        """Takes in what an action of the last decision did."""
        self.ladder.settle(result)

    def rolled_back(self, to_step: int) -> None:
        """The training's state is that of `to_step` again: so are the windows.

        The pipeline goes back to its own newest copy at or before `to_step` and looks at the steps
        between once more, or begins anew. Treatments, skips and budgets are not taken back, nor is
        an announced change: the script's data do not go back with the weights. The next steps show
        whether the weights were to blame at all (`RollbackEvaluation`).

        Args:
            to_step: the step whose state was restored.
        """
        seen = [record for copy in self._copies for record in copy.since]
        if self._go_back(to_step):
            then = [r.loss for r in seen if to_step - LOOK_BACK <= r.step <= to_step]
            self._evaluation.start(to_step, then, seen[-1].loss if seen else math.nan)

    def resumed(self, step: int, checkpoint: str = "") -> None:
        """A process goes on from the state of `step`: the losses to come are compared with those
        before it.

        Args:
            checkpoint: its name, if it is one of ours.
        """
        if self._copies:  # in a log; a live run's windows come with the checkpoint
            self._go_back(step)
        self.predictor.resumed(step, checkpoint)

    def _go_back(self, to_step: int) -> bool:
        """Brings the windows back to those before `to_step`; False where they begin anew."""
        copies = self._copies
        while copies and copies[-1].step > to_step:
            copies.pop()
        if not copies:
            self._begin()
            return False
        copy = copies[-1]
        between = [record for record in copy.since if record.step < to_step]
        copy.since.clear()
        self._load_view(copy.view)
        if between:
            self._look_at_parts(between)
        if self._announced_at >= to_step:
            self._forget_levels()
        return True

    def state_dict(self) -> dict[str, Any]:
        """JSON-able; an equal pipeline goes on from it bit for bit."""
        advisor = self._advisor.state_dict() if self._advisor else None
        return {
            **self._view(),
            "ladder": self.ladder.state_dict(),
            "advisor": advisor,
            "announced_at": self._announced_at,
            "other_data": self._other_data.state_dict(),
            "rollback_evaluation": self._evaluation.state_dict(),
            "rate_test": self._rate_test.state_dict(),
            "moving_objective": self._objective.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from `state`; detectors it does not know begin anew."""
        self._load_view(state)
        self.ladder.load_state_dict(state["ladder"])
        self._announced_at = int(state.get("announced_at", -1))
        if "other_data" in state:
            self._other_data.load_state_dict(state["other_data"])
        if "rate_test" in state:
            self._rate_test.load_state_dict(state["rate_test"])
        if "moving_objective" in state:
            self._objective.load_state_dict(state["moving_objective"])
        if "rollback_evaluation" in state:
            self._evaluation.load_state_dict(state["rollback_evaluation"])
        if self._advisor and state.get("advisor"):
            self._advisor.load_state_dict(state["advisor"])

    def _view(self) -> dict[str, Any]:
        return {
            "detectors": {d.name: d.state_dict() for d in self.detectors},
            "predictor": self.predictor.state_dict(),
        }

    def _load_view(self, state: Mapping[str, Any]) -> None:
        for detector in self.detectors:
            kept = state["detectors"].get(detector.name)
            if kept is None:
                detector.reset()
            else:
                detector.load_state_dict(kept)
        self.predictor.load_state_dict(state["predictor"])


@dataclass(frozen=True, slots=True)
class _Copy:
    """The windows as they were before `step`, and what was looked at since."""

    step: int
    view: dict[str, Any]
    since: list[StepRecord]


COPY_EVERY = 300
COPIES = 3
"""A copy is expensive, so there are few of them; judging the steps since a copy again brings the
windows back to the very step. They reach 600 steps back at least; the oldest snapshot is 300 steps
old."""
