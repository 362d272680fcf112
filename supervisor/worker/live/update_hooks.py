"""An optimizer's update: recorded, judged, planned, changed if need be, and counted."""

from __future__ import annotations

from torch.optim import Optimizer

from supervisor.fault_injection.injector import FaultInjector
from supervisor.worker.core.parts import Parts
from supervisor.worker.corruption.update_watch import UpdateWatch
from supervisor.worker.ground.error_barrier import ErrorBarrier
from supervisor.worker.ground.progress import Progress
from supervisor.worker.ground.step_probe import told_by_scaler
from supervisor.worker.live.lead import Lead
from supervisor.worker.live.step_recorder import StepRecorder
from supervisor.worker.treatment.dispatcher import Dispatcher
from supervisor.worker.treatment.trial_step import LEFT_OUT, OlderWeights
from supervisor.worker.treatment.update_controls import AS_IT_IS, POISONED, UpdateControls


class UpdateHooks:
    """What `Monitor` does about an update: `begin` before it, then `end`, or `failed` if it raised.

    Only the lead's updates are recorded, judged and counted as steps; those of other optimizers
    belong to its step. `injector` breaks things on purpose, in drills and tests alone.
    """

    def __init__(
        self,
        *,
        progress: Progress,
        lead: Lead,
        steps: StepRecorder,
        dispatcher: Dispatcher,
        controls: UpdateControls,
        parts: Parts,
        watch: UpdateWatch,
        trial: OlderWeights,
        injector: FaultInjector,
        barrier: ErrorBarrier,
    ) -> None:
        self._progress = progress
        self._lead = lead
        self._steps = steps
        self._dispatcher = dispatcher
        self._controls = controls
        self._parts = parts
        self._watch = watch
        self._trial = trial
        self._watching = barrier("corruption")
        self._injector = injector
        self._armed = injector.is_armed
        self._judging = barrier("judging")

    def begin(self, optimizer: Optimizer, *, is_lead: bool) -> None:
        """Judges the step if the lead updates, and changes the update as it is planned."""
        step, controls = self._progress.steps_done, self._controls
        if self._armed:
            self._injector.on_gradients(step, controls.parameters(optimizer))
        scale, scaler_skips = told_by_scaler(optimizer)
        if is_lead:
            is_trial = self._trial.is_on and self._trial.update_begins()
            is_left_out = self._judge(
                optimizer, is_in_time=not scaler_skips, scaler_skipped=scaler_skips, scale=scale
            )
            why = LEFT_OUT if is_trial else POISONED if is_left_out else ""
            plan = controls.plan(optimizer, step, why)
            if plan.skip:
                self._steps.mark_skipped()
        else:
            plan = controls.plan_follower(optimizer, step, scaler_skips=scaler_skips)
        if plan is not AS_IT_IS:
            controls.apply(optimizer, step, plan, scale)
        if self._armed:
            self._injector.before_step(step, optimizer)
        if scaler_skips:
            self._watch.failed(optimizer)  # torch counts writes where nothing was changed
        elif not plan.skip and self._watching.is_on:
            probe = self._progress.probe
            try:
                self._watch.begin(optimizer, probe.grad_norm if is_lead else None, probe.clips_at)
            except BaseException as error:
                self._watching.caught(error)

    def gradients_came_again(self, optimizer: Optimizer) -> None:
        """A closure ran again after the plan: its new gradients are hidden too, if the update is
        left out."""
        self._controls.hide_again(optimizer)

    def end(self, optimizer: Optimizer, *, is_lead: bool) -> None:
        """The update was made: takes back what was changed for it, and counts it."""
        if is_lead and self._steps.row < 0:
            # It was to be judged after the closure's last evaluation, but there were fewer of them
            # than in the step before: the update is made, and can no longer be left out.
            self._judge(optimizer, is_in_time=False)
        if self._watch.awaits_end and self._watching.is_on:
            try:
                self._watch.end(optimizer)
            except BaseException as error:
                self._watching.caught(error)
        if self._controls.is_open:
            self._controls.end()
        if self._trial.is_on:
            self._trial.update_ended()
        if self._armed:
            self._injector.on_updated(self._progress.steps_done, optimizer)
        if is_lead:
            self._finish_step(optimizer)
        else:
            self._lead.count_other(optimizer)

    def failed(self, optimizer: Optimizer, *, is_lead: bool) -> None:
        """The update raised. A step that was recorded counts all the same, because two records
        must not have one number."""
        self._watch.failed(optimizer)
        self._controls.end()
        if self._trial.is_on:
            self._trial.update_ended()
        if is_lead and self._steps.row >= 0:
            self._finish_step(optimizer)

    def left_out_by_scaler(self, optimizer: Optimizer) -> bool:
        """The script's scaler found gradients that are not finite and made no update; returns
        whether the optimizer was the lead."""
        is_lead = self._lead.leads(optimizer)
        if is_lead:
            self._judge(optimizer, is_in_time=False, scaler_skipped=True)
            self._finish_step(optimizer)
        else:
            self._lead.count_other(optimizer)  # as a replay does, which leaves nothing out
        return is_lead

    def _judge(
        self,
        optimizer: Optimizer,
        *,
        is_in_time: bool = True,
        scaler_skipped: bool = False,
        scale: float = 1.0,
    ) -> bool:
        """Records the step under way and has it judged; returns whether its update is left out."""
        if not self._progress.steps_done:
            self._parts.before_first_update()
        record = self._steps.record(optimizer, scaler_skipped=scaler_skipped, scale=scale)
        try:
            if self._judging.is_on:
                return self._dispatcher.judge(record, self._steps.row, is_in_time=is_in_time)
        except BaseException as error:
            self._judging.caught(error)
        return False

    def _finish_step(self, lead: Optimizer) -> None:
        self._steps.finish(lead)
        if self._armed:
            self._injector.on_step_done(self._progress.steps_done)
        self._lead.clock.updated(lead)
