"""The live driver: what is done at each moment of a step while the script trains.

`Live` is the inner loop of the whole product. The patched functions call it, and a step passes
through its methods in this order, in which everything is written out (docs/design/house.md):

* `forward` and `backward` note what they see in `Progress.probe`; a batch may take several;
* `before_update`: the step is recorded and judged, and its update is changed if need be; under a
  closure this happens after the closure's backward (`seen_closure`);
* `after_update`: the change is taken back, and the step is counted;
* `boundary`, at the next outermost `forward`: scheduler, scaler, EMA and the user's own bookkeeping
  are done by then, so the state is whole. All parts are called that have something to do.

Where the script's GradScaler leaves an update out, `before_update` is never called:
`scaler_step` notices, and the step is recorded and counted all the same.
"""

from __future__ import annotations

import functools
import math
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.autograd.graph import GradientEdge
from torch.nn import Module
from torch.optim import Optimizer

from supervisor.by_identity import IdentitySet
from supervisor.fault_injection.injector import FaultInjector
from supervisor.storage.steps.applied_rates import OwnTimes
from supervisor.storage.steps.replay_log import EntryKind
from supervisor.worker.compute_check.compute_check import BACKWARD, FORWARD, ComputeCheck
from supervisor.worker.core.boundary_clock import BoundaryClock, graph_nodes, seen_closure
from supervisor.worker.core.graphs_across import has_graph
from supervisor.worker.core.parts import Parts
from supervisor.worker.core.process_signs import Heartbeat
from supervisor.worker.core.step_probe import told_by_scaler
from supervisor.worker.core.training_hooks import Call, TrainingHooks
from supervisor.worker.core.worker_context import WorkerContext
from supervisor.worker.corruption.update_watch import UpdateWatch
from supervisor.worker.gradients.called_hooks import CLOSED, CalledHooks
from supervisor.worker.judging.step_judge import NewTrainings, StepJudge
from supervisor.worker.mistakes.watch import MistakeWatch
from supervisor.worker.ranks.exchanges import Exchanges, FirstAverages
from supervisor.worker.ranks.waiting_ranks import OwnTime
from supervisor.worker.reads.recording import Recording, encode
from supervisor.worker.script_state.user_frames import is_within_expression
from supervisor.worker.step_record.late_steps import LateSteps
from supervisor.worker.step_record.step_recorder import StepRecorder
from supervisor.worker.treatment.trial_step import OlderWeights
from supervisor.worker.treatment.update_controls import AS_IT_IS, POISONED, UpdateControls


class Live(TrainingHooks):
    """What a live training calls; `Replay` answers the same hooks until it arrives.

    Only the main optimizer's updates are recorded, judged and counted as steps; what others do
    belongs to its step. `injector` breaks things on purpose, in drills and tests alone.

    Attributes:
        call_state, progress, registry, schedule: of this process.
        clock: knows the main optimizer and when a boundary is due; a resume hands on its replay's.
    """

    def __init__(
        self,
        context: WorkerContext,
        *,
        parts: Parts,
        recording: Recording,
        steps: StepRecorder,
        step_judge: StepJudge,
        updates: UpdateControls,
        trainings: NewTrainings,
        trial: OlderWeights,
        watch: UpdateWatch,
        compute: ComputeCheck,
        gradient_hooks: CalledHooks,
        exchanges: Exchanges,
        averages: FirstAverages,
        heartbeat: Heartbeat,
        mistakes: MistakeWatch,
        late: LateSteps,
    ) -> None:
        breakers, is_alone = context.breakers, context.place.is_alone
        faults = context.rundir.root / f"faults{context.suffix}.json"
        injector = FaultInjector(context.settings.faults, faults, rank=context.rank)
        self.clock = BoundaryClock(of_ranks=not is_alone)
        self.call_state = context.call_state
        self.progress = context.progress
        self.registry = context.registry
        self._parts = parts
        self.schedule = parts.schedule
        self._recording = recording
        self._random = recording.random
        self._called_hooks = gradient_hooks
        self._steps = steps
        self._step_judge = step_judge
        self._updates = updates
        self._trainings = trainings
        of_rank = context.rundir.steps(context.rank)
        self._own_time = None if is_alone else OwnTime(OwnTimes(of_rank))
        self._trial = trial
        self._watch = watch
        self._compute = compute
        self._exchanges = exchanges
        self._averages = averages
        self._heartbeat = heartbeat
        self._injector = injector
        self._armed = injector.is_armed
        self.mistakes = mistakes
        self._late = late
        late.on_left_out = mistakes.was_left_out
        self.has_late_steps = late.is_on
        self._forward_part = breakers("forward", records=True)
        self._loss_part = breakers("loss")
        self._scaler_part = breakers("scaler", records=True)
        self._clipping_part = breakers("clipping")
        self._judging_part = breakers("judging")
        self._watching_part = breakers("corruption")
        self._update_part = breakers("update", is_essential=True, records=True)
        self._last_module: Callable[[], Module | None] = lambda: None
        self._boundary_at = -1  # steps done at the last boundary: each step has only one
        self._met: IdentitySet[Any] = IdentitySet()
        self._scaled: tuple[Any, Any] | None = None
        self._update_began = False
        self._is_updating = False

    # --- regions -----------------------------------------------------------------------------

    def forward(
        self, module: Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], call: Call
    ) -> Any:
        clock = self.clock
        if clock.of_ranks and clock.is_before_training():
            return call()
        call_state = self.call_state
        call_state.depth += 1
        try:
            part, progress = self._forward_part, self.progress
            try:
                is_on = part.is_on
                if is_on and module is not self._last_module():
                    self._meet(module, self.registry.add_model)
                    self._last_module = weakref.ref(module)
                if clock.is_due and clock.is_due_here():
                    self._boundary_at_forward(clock)
                clock.has_forwards = True
                if is_on:
                    progress.probe.saw_forward(args, kwargs)
                    self._steps.inputs.saw(args, kwargs)
                    self._heartbeat.beat(progress.steps_done)
            except BaseException as error:
                part.caught(error)
            if self._armed:
                call = self._injector.on_forward(progress.steps_done, module, args, kwargs, call)
            if self.mistakes.is_on:
                self.mistakes.forward(module, args, kwargs)
            with_graph = torch.is_grad_enabled()
            if not with_graph and self.mistakes.sleeps:
                self.mistakes.evaluated(module, args, kwargs)
            nodes = 0 if with_graph else graph_nodes()
            if self._compute.step == progress.steps_done:
                call = functools.partial(self._compute.run, FORWARD, call)
            elif self._trial.is_on and with_graph and module.training:
                call = functools.partial(self._trial.forward, call)
            random = self._random
            earlier = random.before()
            output = call()
            if self._averages.are_open:
                with part:
                    if self._averages.has_begun() and with_graph:
                        number = progress.probe.forward_calls
                        self._recording.note(EntryKind.FIRST_AVERAGE, number)
            random.after(earlier)
            if not with_graph or not progress.graphs.seen:
                try:
                    if with_graph:
                        progress.graphs.watch(output)
                    elif not has_graph(output):
                        self.clock.made_without_graph(graph_nodes() - nodes)
                except BaseException as error:
                    self._loss_part.caught(error)
            return self._injector.on_output(progress.steps_done, output) if self._armed else output
        finally:
            if self.mistakes.is_on:
                self.mistakes.forward_ended()
            call_state.depth -= 1

    def backward(self, roots: Any, call: Callable[[Any], Any]) -> Any:
        call_state, hooks = self.call_state, self._called_hooks
        call_state.depth += 1
        earlier_hooks, hooks.place = hooks.place, 0
        hooks.has_updated = False
        try:
            try:
                if self._armed:
                    roots = self._injector.on_loss(self.progress.steps_done, roots)
                self._begin_backward(roots)
            except BaseException as error:
                self._loss_part.caught(error)
            if self.mistakes.is_on:
                self.mistakes.backward(roots)
            if self._compute.step == self.progress.steps_done:
                call = functools.partial(self._compute.run, BACKWARD, call)
            random = self._random
            if random.backwards_are_quiet:
                random.region += 1
                result = call(roots)
            else:
                earlier = random.read()
                result = call(roots)
                random.after_backward(earlier)
            if self.progress.probe.on_device.waiting:
                self._steps.backward_ended()
            if self.mistakes.is_on:
                self.mistakes.backward_ended()
            if hooks.has_updated:
                self._updated_in_hooks()
            return result
        finally:
            hooks.place = earlier_hooks
            call_state.depth -= 1

    def _updated_in_hooks(self) -> None:
        """Called behind a backward in whose hooks optimizers have stepped: only now have all."""
        try:
            self.clock.backward_ended()
            if self.clock.is_due_at_update():
                self.boundary()
        except BaseException as error:
            self._update_part.caught(error)

    def _begin_backward(self, roots: Any) -> None:
        probe = self.progress.probe
        if self._trial.is_on:
            self._trial.backward_begins(roots, self._scaled)
        if not probe.backward_calls:
            if self._late.is_on:
                self._late.backward_begins()
            if self._own_time is not None:
                self._own_time.backward_begins(self.progress.steps_done)
        self._steps.begin_backward()
        if not self._loss_part.is_on:
            return
        if type(roots) is torch.Tensor and self._scaled is None and not roots.shape:
            probe.saw_loss(roots)
        else:
            self._see_loss(roots)

    def grad(self, call: functools.partial[Any]) -> Any:
        if self._trial.is_on:
            self._trial.gradients_begin()
        found = self._region(call)
        given = found.values() if isinstance(found, dict) else found
        unused = [place for place, gradient in enumerate(given) if gradient is None]
        if unused:
            self._recording.replay_log.append(EntryKind.UNUSED, encode(EntryKind.UNUSED, unused))
        return found

    def graph_replays(self) -> None:
        self._heartbeat.beat(self.progress.steps_done)
        self._steps.graph_replays()

    def scale(self, scaler: Any, outputs: Any, call: Call) -> Any:
        result = self._region(call)
        self._steps.scaler = scaler
        if isinstance(outputs, torch.Tensor) and scaler.is_enabled():
            self._scaled = (result, outputs)
        return result

    def scaler_step(self, scaler: Any, optimizer: Optimizer, call: Call) -> Any:
        self._update_began = False
        result = self._region(call)
        if not self._update_began:
            with self._scaler_part, self.call_state.region():
                self._left_out_by_scaler(optimizer)
        return result

    def _left_out_by_scaler(self, optimizer: Optimizer) -> None:
        """The script's scaler found gradients that are not finite and made no update."""
        if self._becomes_main(optimizer):
            self._judge(optimizer, is_in_time=False, scaler_skipped=True)
            self._finish_step(optimizer)
            self._scaled = None
        else:
            self._count_other(optimizer)  # as a replay does, which leaves nothing out

    def scaler_reads(self, optimizer: Optimizer, call: Call) -> Any:
        if self._late.is_on and not self._armed and optimizer is self.clock.main():
            with self._scaler_part:
                self._late.send_ahead(optimizer)
        return call()

    def scaler_call(self, call: Call) -> Any:
        return self._region(call)

    def clip(
        self, parameters: list[torch.Tensor], max_norm: float, call: Callable[[float], Any]
    ) -> Any:
        call_state, part = self.call_state, self._clipping_part
        call_state.depth += 1
        try:
            try:
                if self._armed:
                    self._injector.on_gradients(self.progress.steps_done, parameters)
                if part.is_on:
                    max_norm = self._updates.clip_norm_for_script(max_norm)
            except BaseException as error:
                part.caught(error)
            norm = call(max_norm)
            try:
                if part.is_on:
                    self._steps.clipped(parameters, max_norm, norm)
            except BaseException as error:
                part.caught(error)
            return norm
        finally:
            call_state.depth -= 1

    # --- the update --------------------------------------------------------------------------

    def before_update(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        self.call_state.depth += 1
        try:
            self._update_began = True
            if self._is_updating:
                return None  # an optimizer that calls another one: both make one update
            clock = self.clock
            is_main = optimizer is clock.main()
            if not is_main:
                self._meet(optimizer, self.registry.add_optimizer)
                if clock.main() is None and self._is_within_forward():
                    self.progress.can_replay = False  # a replay does nothing in a forward
                is_main = self._becomes_main(optimizer)
            self._is_updating = is_main
            if self.mistakes.is_on:
                self.mistakes.before_update(optimizer)
            closure = args[0] if args else kwargs.get("closure")
            if closure is not None:
                if clock.is_due and clock.has_forwards:  # before what the closure counts
                    clock.passed()
                    self.boundary()
                plan = functools.partial(self._plan_in_closure, optimizer, is_main)
                return seen_closure(clock, self.call_state, optimizer, args, kwargs, plan)
            self._begin_update(optimizer, is_main=is_main)
            return None
        except BaseException as error:
            self._update_part.caught(error)
            return None

    def _begin_update(
        self, optimizer: Optimizer, *, is_main: bool, has_closure: bool = False
    ) -> None:
        """Judges the step of the main optimizer, and changes the update as it is planned."""
        step, updates = self.progress.steps_done, self._updates
        if self._armed:
            self._injector.on_gradients(step, updates.parameters(optimizer))
        if self._late.is_on and self._is_late(optimizer, is_main, has_closure):
            return
        scale, scaler_skips = told_by_scaler(optimizer)
        if is_main:
            if self._trial.is_on:
                self._trial.update_begins()
            updates.step_follows = not (
                has_closure or self._armed or scaler_skips or self._trial.is_on
            )
            is_left_out = self._judge(
                optimizer, is_in_time=not scaler_skips, scaler_skipped=scaler_skips, scale=scale
            )
            updates.step_follows = False
            plan = updates.plan(optimizer, step, POISONED if is_left_out else "")
            if plan.skip:
                self._steps.mark_skipped()
        else:
            plan = updates.plan_other(optimizer, step, scaler_skips=scaler_skips)
        if plan is not AS_IT_IS:
            updates.apply(optimizer, step, plan, scale)
        if self._armed:
            self._injector.before_step(step, optimizer)
        if scaler_skips:
            self._watch.failed(optimizer)  # torch counts writes where nothing was changed
        elif not plan.skip and self._watching_part.is_on:
            probe = self.progress.probe
            try:  # sees what will be applied
                self._watch.update_begins(
                    optimizer, probe.grad_norm if is_main else None, probe.clips_at
                )
            except BaseException as error:
                self._watching_part.caught(error)

    def _is_late(self, optimizer: Optimizer, is_main: bool, has_closure: bool) -> bool:
        """Takes in the step before; whether the numbers of this one are not waited for."""
        late, step = self._late, self.progress.steps_done
        if is_main:
            late.take_in()
        if has_closure or self._trial.is_on:
            return False
        if not (late.start(optimizer) if is_main else late.begin_follower(optimizer)):
            return False
        if self._armed:
            self._injector.before_step(step, optimizer)
        if self._watching_part.is_on:
            try:
                norm = math.nan if is_main else None
                self._watch.update_begins(optimizer, norm, self.progress.probe.clips_at)
            except BaseException as error:
                self._watching_part.caught(error)
        return True

    def _judge(
        self,
        optimizer: Optimizer,
        *,
        is_in_time: bool = True,
        scaler_skipped: bool = False,
        scale: float = 1.0,
    ) -> bool:
        """Records the step under way and has it judged; returns whether its update is left out."""
        if not self.progress.steps_done:
            self._parts.before_first_update()
        record = self._steps.record(optimizer, scaler_skipped=scaler_skipped, scale=scale)
        try:
            if self._judging_part.is_on:
                return self._step_judge.judge(record, self._steps.row, is_in_time=is_in_time)
        except BaseException as error:
            self._judging_part.caught(error)
        return False

    def _plan_in_closure(self, optimizer: Optimizer, is_main: bool, plans_before: int) -> None:
        """Called after an evaluation of the closure. The first call in a step begins the update;
        later ones keep its plan, and hide the new gradients if it is left out."""
        try:
            with torch.no_grad():
                if not plans_before:
                    self._begin_update(optimizer, is_main=is_main, has_closure=True)
                else:
                    self._updates.hide_again(optimizer)
        except BaseException as error:
            self._update_part.caught(error)

    @property
    def leaves_update_out(self) -> bool:
        return self._updates.leaves_out

    def after_update(self, optimizer: Optimizer, result: Any) -> Any:
        try:
            clock = self.clock
            is_main = optimizer is clock.main()
            if is_main or not self._is_updating:
                self._is_updating = False
                if is_main:
                    self._scaled = None
                left_out = self._updates.leaves_out
                self._end_update(optimizer, is_main=is_main)
                if self.mistakes.is_on:
                    step = self.progress.steps_done
                    self.mistakes.updated(optimizer, step, is_main=is_main, is_left_out=left_out)
                clock.at_update = self.progress.at_update
                if self._called_hooks.place != CLOSED:
                    self._called_hooks.has_updated = True
                    clock.updated_in_backward(optimizer)
                elif clock.is_due and (clock.at_update or not clock.has_forwards):
                    self.progress.update_result = result
                    self.boundary()
        except BaseException as error:
            self._update_part.caught(error)
        finally:
            self.progress.update_result = None
            self.call_state.depth = max(0, self.call_state.depth - 1)
        return result

    def _end_update(self, optimizer: Optimizer, *, is_main: bool) -> None:
        """Takes back what was changed for the update, and counts it."""
        if is_main and self._steps.row < 0:
            # It was to be judged after the closure's last evaluation, but there were fewer of them
            # than in the step before: the update is made, and can no longer be left out.
            self._judge(optimizer, is_in_time=False)
        if self._watch.awaits_end and self._watching_part.is_on:
            try:  # before the change is taken back
                self._watch.update_ended(optimizer)
            except BaseException as error:
                self._watching_part.caught(error)
        if self._updates.is_open:
            self._updates.update_ended()
        if self._late.flagged:
            self._late.update_ended()
        if self._armed:
            self._injector.on_updated(self.progress.steps_done, optimizer)
        if is_main:
            self._finish_step(optimizer)
        else:
            self._count_other(optimizer)

    def update_failed(self, optimizer: Optimizer) -> None:
        """A step that was recorded counts all the same: two records must not have one number."""
        try:
            is_main = optimizer is self.clock.main()
            if self._is_updating and not is_main:
                return  # the outer one may catch it
            self._is_updating = False
            if is_main:
                self._scaled = None
            self._watch.failed(optimizer)
            self._updates.update_ended()
            self._late.update_ended()
            if is_main and self._steps.row >= 0:
                self._finish_step(optimizer)
        except BaseException as error:
            self._update_part.caught(error)

    def _finish_step(self, main: Optimizer) -> None:
        self._steps.finish(main)
        if self._own_time is not None:
            self._own_time.update_ended()
        if self._armed:
            self._injector.on_step_done(self.progress.steps_done)
        self.clock.updated(main)

    def _becomes_main(self, optimizer: Optimizer) -> bool:
        """Whether `optimizer` is the main one, or becomes it with this update."""
        clock, progress = self.clock, self.progress
        is_main = clock.is_main(optimizer)
        if clock.is_new_main:
            clock.is_new_main = False
            progress.probe.begins_training = clock.is_new_training
            self._trainings.starts(progress.steps_done, has_other_weights=clock.is_new_training)
        return is_main

    def _count_other(self, optimizer: Optimizer) -> None:
        """An update that is not the main optimizer's; many in a row begin another training."""
        progress = self.progress
        if progress.probe.backward_calls:
            progress.probe.others_trained = True
        if self.clock.updated(optimizer):
            progress.probe.forget()
            progress.probe.begins_training = True
            self._trainings.starts(progress.steps_done, has_other_weights=True)

    # --- the boundary ------------------------------------------------------------------------

    def boundary(self) -> None:
        """The state is whole: once a step. Most steps make two comparisons here and no more."""
        schedule, step = self.schedule, self.progress.steps_done
        self._pass(is_looked_at=step >= schedule.step or time.monotonic() >= schedule.time)

    def _pass(self, *, is_looked_at: bool) -> None:
        step = self.progress.steps_done
        if self._boundary_at != step:
            self._boundary_at = step
            self.progress.graphs.boundaries += 1
            if is_looked_at:
                if self._late.is_on:
                    self._late.take_in()
                self._parts.at_boundary(step)

    def _boundary_at_forward(self, clock: BoundaryClock) -> None:
        """The first outermost forward behind an update is the boundary. If a part of the step was
        computed before it, all later ones are at the end of an update; several ranks agree on that
        with the record of the step, also where they do not all stand at the same place here. From
        here they resume approximately, or not at all. Where nobody looks at the boundary, nothing
        is put there that what was computed could miss."""
        progress, schedule = self.progress, self.schedule
        is_looked_at = progress.steps_done >= schedule.step or time.monotonic() >= schedule.time
        is_told = clock.of_ranks and self._exchanges.are_asked
        if is_looked_at or is_told:
            progress.step_is_begun = clock.has_begun_graph() or is_within_expression()
        if is_told:
            self._exchanges.at_forward = self._exchanges.balance()
        elif is_looked_at and progress.step_is_begun and not clock.of_ranks:
            progress.boundaries_at_updates()
            clock.at_update = True
            return
        clock.is_due = False
        self._pass(is_looked_at=is_looked_at)

    @property
    def main_optimizer(self) -> Optimizer | None:
        """The one whose updates are the training's steps; None if it is gone."""
        return self.clock.main()

    @property
    def updates_by_others(self) -> int:
        """Updates of other optimizers since the last step."""
        return self.clock.by_others

    # --- the rest ----------------------------------------------------------------------------

    def settle(self) -> None:
        """Has the last step judged, if its numbers are still to come."""
        with self.call_state.region():
            self._late.take_in()

    def continue_at(self, steps_done: int, clock: BoundaryClock, region: int) -> None:
        """Takes over from a fast-forward that stands at the boundary of `steps_done`.

        Args:
            region: see `RngRecorder`.
        """
        self.mistakes.continue_at()
        self._random.region = region
        self.progress.steps_done = self._boundary_at = steps_done
        self.clock = clock
        self.progress.at_update = clock.at_update
        clock.is_due = False
        self._averages.has_begun()  # in the replay: no later forward has to be executed for it

    def _meet(self, found: Any, register: Callable[[Any], Any]) -> None:
        """Registers an object when it is first seen; asked at every step."""
        if found not in self._met:
            self.progress.has_started = True
            if self._parts.training_starts():
                self._recording.replay_log.append(EntryKind.TRAINING, b"")
            register(found)
            self._met.add(found)

    def _is_within_forward(self) -> bool:
        frame = sys._getframe(1) if self.call_state.depth > 1 else None
        while frame is not None and frame.f_code is not Live.forward.__code__:
            frame = frame.f_back
        return frame is not None

    def _region(self, call: Call) -> Any:
        self.call_state.depth += 1
        try:
            return call()
        finally:
            self.call_state.depth -= 1

    def _see_loss(self, roots: Any) -> None:
        probe = self.progress.probe
        is_one = isinstance(roots, (torch.Tensor, GradientEdge)) or not isinstance(roots, Iterable)
        with torch._C.DisableTorchFunctionSubclass():
            for root in (roots,) if is_one else roots:
                if not isinstance(root, torch.Tensor) or root.numel() != 1:
                    continue  # or the edge of a graph, which has no value
                if self._scaled is not None and root is self._scaled[0]:
                    root = self._scaled[1]
                probe.saw_loss(root)
