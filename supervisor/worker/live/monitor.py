"""Watches the live training: forward, backward, update and boundary of each step.

`Monitor` is the inner loop of the whole product. The patched functions call it, and a step passes
through its methods in this order:

* `forward` and `backward` note what they see in `Progress.probe`; a batch may take several;
* `before_update`: the step is recorded and judged, and its update is changed if need be; under a
  closure this happens after the closure's backward (`SeenClosures`);
* `after_update`: the change is taken back, and the step is counted;
* the next outermost `forward` is the boundary. Scheduler, scaler, EMA and the user's own
  bookkeeping are done by then, so the state is whole: checkpoints and rollbacks happen here.

Where the script's GradScaler leaves an update out, `before_update` is never called:
`scaler_step` notices, and the step is recorded and counted all the same.
"""

from __future__ import annotations

import functools
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
from supervisor.storage.steps.tape import EntryKind
from supervisor.training_state.gradient_hook import GradientHook
from supervisor.training_state.registry import Registry
from supervisor.worker.capture.script_census import ScriptCensus
from supervisor.worker.compute_check.compute_check import BACKWARD, FORWARD, ComputeCheck
from supervisor.worker.ground.boundary_clock import BoundaryClock, graph_nodes
from supervisor.worker.ground.error_barrier import ErrorBarrier
from supervisor.worker.ground.graphs_across import has_graph
from supervisor.worker.ground.interception_state import InterceptionState
from supervisor.worker.ground.progress import Progress
from supervisor.worker.ground.step_probe import read_number
from supervisor.worker.ground.user_frames import is_within_expression
from supervisor.worker.group.exchanges import Exchanges
from supervisor.worker.group.first_averages import FirstAverages
from supervisor.worker.interception.training_hooks import Call, TrainingHooks
from supervisor.worker.live.boundary import Boundary
from supervisor.worker.live.lead import Lead
from supervisor.worker.live.loader_hooks import LoaderHooks
from supervisor.worker.live.seen_closure import SeenClosures
from supervisor.worker.live.step_recorder import StepRecorder
from supervisor.worker.live.update_hooks import UpdateHooks
from supervisor.worker.mistakes.watch import MistakeWatch
from supervisor.worker.process.heartbeat import Heartbeat
from supervisor.worker.recording.called_hooks import CalledHooks
from supervisor.worker.recording.recording import Recording, encode
from supervisor.worker.recording.told_objects import note_objects
from supervisor.worker.treatment.trial_step import OlderWeights
from supervisor.worker.treatment.update_controls import UpdateControls


class Monitor(TrainingHooks):
    """What a live training calls; a fast-forward answers the same hooks until it arrives."""

    def __init__(
        self,
        *,
        interception: InterceptionState,
        progress: Progress,
        registry: Registry,
        recording: Recording,
        lead: Lead,
        steps: StepRecorder,
        updates: UpdateHooks,
        census: ScriptCensus,
        update_controls: UpdateControls,
        boundary: Boundary,
        loaders: LoaderHooks,
        injector: FaultInjector,
        heartbeat: Heartbeat,
        exchanges: Exchanges,
        averages: FirstAverages,
        compute: ComputeCheck,
        trial: OlderWeights,
        mistakes: MistakeWatch,
        barrier: ErrorBarrier,
    ) -> None:
        self._interception = interception
        self._progress = progress
        self._registry = registry
        self._recording = recording
        self._random = recording.random
        self._called_hooks = CalledHooks(recording.tape, interception, progress)
        self._lead = lead
        self._steps = steps
        self._updates = updates
        self._census = census
        self._update_controls = update_controls
        self._boundary = boundary
        self._schedule = boundary.schedule
        self.loading: LoaderHooks = loaders
        self._injector = injector
        self._armed = injector.is_armed
        self._heartbeat = heartbeat
        self._exchanges = exchanges
        self._averages = averages
        self._compute = compute
        self._trial = trial
        self.mistakes = mistakes
        self._forward_part = barrier("forward", records=True)
        self._loss_part = barrier("loss")
        self._reads_part = barrier("reads", records=True)
        self._objects_part = barrier("objects", records=True)
        self._scaler_part = barrier("scaler", records=True)
        self._clipping_part = barrier("clipping")
        self._update_part = barrier("update", is_essential=True, records=True)
        self._closures = SeenClosures(interception)
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
        clock = self._lead.clock
        if clock.of_ranks and clock.is_before_training():
            return call()
        interception = self._interception
        interception.depth += 1
        try:
            part, progress = self._forward_part, self._progress
            try:
                is_on = part.is_on
                if is_on and module is not self._last_module():
                    self._meet(module, self._registry.add_model)
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
                self.mistakes.forward(module)
            with_graph = torch.is_grad_enabled()
            nodes = 0 if with_graph else graph_nodes()
            if self._compute.step == progress.steps_done:
                call = functools.partial(self._compute.run, FORWARD, call)
            if self._trial.is_on and with_graph and module.training:
                call = functools.partial(self._trial.forward, call)
            random = self._random
            earlier = random.before()
            output = call()
            with part:
                if self._averages.has_begun() and with_graph:
                    number = progress.probe.forward_calls
                    self._recording.note(EntryKind.FIRST_AVERAGE, number)
            random.after(earlier)
            if not with_graph or not progress.graphs.seen:
                with self._loss_part:
                    if with_graph:
                        progress.graphs.watch(output)
                    elif not has_graph(output):
                        self._lead.clock.made_without_graph(graph_nodes() - nodes)
            return self._injector.on_output(progress.steps_done, output) if self._armed else output
        finally:
            if self.mistakes.is_on:
                self.mistakes.forward_ended()
            interception.depth -= 1

    def backward(self, roots: Any, call: Callable[[Any], Any]) -> Any:
        interception, hooks = self._interception, self._called_hooks
        interception.depth += 1
        earlier_hooks = hooks.begin()
        try:
            try:
                if self._armed:
                    roots = self._injector.on_loss(self._progress.steps_done, roots)
                self._begin_backward(roots)
            except BaseException as error:
                self._loss_part.caught(error)
            if self.mistakes.is_on:
                self.mistakes.backward(roots)
            if self._compute.step == self._progress.steps_done:
                call = functools.partial(self._compute.run, BACKWARD, call)
            random = self._random
            if random.backwards_are_quiet:
                random.passed()
                result = call(roots)
            else:
                earlier = random.look()
                result = call(roots)
                random.after_backward(earlier)
            if self.mistakes.is_on:
                self.mistakes.backward_ended()
            if hooks.has_updated:
                self._updated_in_hooks()
            return result
        finally:
            hooks.end(earlier_hooks)
            interception.depth -= 1

    def gradient_hook(self, hook: GradientHook) -> None:
        is_training = bool(self._met) or self._progress.has_begun()
        self._called_hooks.run(hook, is_training=is_training)

    def _updated_in_hooks(self) -> None:
        """Called behind a backward in whose hooks optimizers have stepped: only now have all."""
        try:
            self._lead.clock.backward_ended()
            if self._lead.clock.is_due_at_update():
                self._pass_boundary()
        except BaseException as error:
            self._update_part.caught(error)

    def _begin_backward(self, roots: Any) -> None:
        probe = self._progress.probe
        self._steps.begin_backward()
        if not self._loss_part.is_on:
            return
        if type(roots) is torch.Tensor and self._scaled is None and not roots.shape:
            probe.loss += read_number(roots)
            probe.loss_seen = True
        else:
            self._see_loss(roots)

    def grad(self, call: functools.partial[Any]) -> Any:
        found = self._region(call)
        given = found.values() if isinstance(found, dict) else found
        unused = [place for place, gradient in enumerate(given) if gradient is None]
        if unused:
            self._recording.tape.append(EntryKind.UNUSED, encode(EntryKind.UNUSED, unused))
        return found

    def graph_replays(self) -> None:
        self._heartbeat.beat(self._progress.steps_done)
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
            with self._scaler_part, self._interception.region():
                if self._updates.left_out_by_scaler(optimizer):
                    self._scaled = None
        return result

    def scaler_call(self, call: Call) -> Any:
        return self._region(call)

    def clip(
        self, parameters: list[torch.Tensor], max_norm: float, call: Callable[[float], Any]
    ) -> Any:
        interception, part = self._interception, self._clipping_part
        interception.depth += 1
        try:
            try:
                if self._armed:
                    self._injector.on_gradients(self._progress.steps_done, parameters)
                if part.is_on:
                    max_norm = self._update_controls.clip_norm_for_script(max_norm)
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
            interception.depth -= 1

    def read(self, kind: int, call: Call) -> Any:
        return self._recording.read(kind, call)

    def read_all(self, tensor: torch.Tensor) -> None:
        with self._reads_part, self._interception.region():
            self._recording.large.note(tensor)

    def objects(self, place: list[Any] | None, call: Call, *, all_have: bool) -> Any:
        with self._interception.region():
            result = call()
            with self._objects_part:
                note_objects(self._recording.tape, place, result, all_have=all_have)
            return result

    def plans(self, call: Call) -> Any:
        with self._interception.region():
            return call()

    def looks_at_random(self) -> None:
        self._random.looked_at()

    def batch(self, batch: Any) -> Any:
        self.loading.batch(batch)
        return batch

    # --- the update --------------------------------------------------------------------------

    def before_update(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        self._interception.depth += 1
        try:
            self._update_began = True
            if self._is_updating:
                return None  # an optimizer that calls another one: both make one update
            clock = self._lead.clock
            is_lead = optimizer is clock.lead()
            if not is_lead:
                self._meet(optimizer, self._registry.add_optimizer)
                if clock.lead() is None and self._is_within_forward():
                    self._progress.tape_is_whole = False  # a replay does nothing in a forward
                is_lead = self._lead.leads(optimizer)
            self._is_updating = is_lead
            if self.mistakes.is_on:
                self.mistakes.before_update(optimizer)
            closure = args[0] if args else kwargs.get("closure")
            if closure is not None:
                if clock.is_due and clock.has_forwards:  # before what the closure counts
                    clock.passed()
                    self._pass_boundary()
                plan = functools.partial(self._plan_in_closure, optimizer, is_lead)
                return self._closures.wrap(optimizer, args, kwargs, plan)
            self._updates.begin(optimizer, is_lead=is_lead)
            return None
        except BaseException as error:
            self._update_part.caught(error)
            return None

    def _plan_in_closure(self, optimizer: Optimizer, is_lead: bool, plans_before: int) -> None:
        """Called after an evaluation of the closure. The first call in a step begins the update;
        later ones keep its plan, and hide the new gradients if it is left out."""
        try:
            with torch.no_grad():
                if not plans_before:
                    self._updates.begin(optimizer, is_lead=is_lead)
                else:
                    self._updates.gradients_came_again(optimizer)
        except BaseException as error:
            self._update_part.caught(error)

    @property
    def leaves_update_out(self) -> bool:
        return self._update_controls.leaves_out

    def after_update(self, optimizer: Optimizer, result: Any) -> Any:
        try:
            clock = self._lead.clock
            is_lead = optimizer is clock.lead()
            if is_lead or not self._is_updating:
                self._is_updating = False
                if is_lead:
                    self._scaled = None
                left_out = self._update_controls.leaves_out
                self._updates.end(optimizer, is_lead=is_lead)
                if self.mistakes.is_on:
                    step = self._progress.steps_done
                    self.mistakes.updated(optimizer, step, is_lead=is_lead, is_left_out=left_out)
                clock.at_update = self._progress.at_update
                if self._called_hooks.are_due:
                    self._called_hooks.has_updated = True
                    clock.updated_in_backward(optimizer)
                elif clock.is_due_at_update():
                    self._progress.update_result = result
                    self._pass_boundary()
        except BaseException as error:
            self._update_part.caught(error)
        finally:
            self._progress.update_result = None
            self._interception.depth = max(0, self._interception.depth - 1)
        return result

    def update_failed(self, optimizer: Optimizer) -> None:
        try:
            is_lead = optimizer is self._lead.clock.lead()
            if self._is_updating and not is_lead:
                return  # the outer one may catch it
            self._is_updating = False
            if is_lead:
                self._scaled = None
            self._updates.failed(optimizer, is_lead=is_lead)
        except BaseException as error:
            self._update_part.caught(error)

    def _pass_boundary(self) -> None:
        self._pass(is_looked_at=self._is_looked_at())

    def _pass(self, *, is_looked_at: bool) -> None:
        step = self._progress.steps_done
        if self._boundary_at != step:
            self._boundary_at = step
            self._progress.graphs.boundaries += 1
            if is_looked_at:
                self._boundary.at_boundary(step)

    def _is_looked_at(self) -> bool:
        schedule = self._schedule
        return self._progress.steps_done >= schedule.step or time.monotonic() >= schedule.time

    def _boundary_at_forward(self, clock: BoundaryClock) -> None:
        """The first outermost forward behind an update is the boundary. If a part of the step was
        computed before it, all later ones are at the end of an update; several ranks agree on that
        with the record of the step, also where they do not all stand at the same place here. From
        here they resume approximately, or not at all. Where nobody looks at the boundary, nothing
        is put there that what was computed could miss."""
        progress, is_looked_at = self._progress, self._is_looked_at()
        if is_looked_at or clock.of_ranks:
            progress.step_is_begun = clock.has_begun_graph() or is_within_expression()
        if clock.of_ranks:
            self._exchanges.at_boundary = self._exchanges.balance()
        elif is_looked_at and progress.step_is_begun:
            progress.boundaries_at_updates()
            clock.at_update = True
            return
        clock.passed()
        self._pass(is_looked_at=is_looked_at)

    @property
    def lead_optimizer(self) -> Optimizer | None:
        """The one whose updates are the training's steps; None if it is gone."""
        return self._lead.clock.lead()

    @property
    def updates_by_others(self) -> int:
        """Updates of other optimizers since the last step."""
        return self._lead.clock.by_others

    # --- the rest ----------------------------------------------------------------------------

    def continue_at(self, steps_done: int, clock: BoundaryClock, region: int) -> None:
        """Takes over from a fast-forward that stands at the boundary of `steps_done`.

        Args:
            region: see `RngRecorder`.
        """
        self.mistakes.continue_at()
        self._random.region = region
        self._progress.steps_done = self._boundary_at = steps_done
        self._lead.clock = clock
        self._progress.at_update = clock.at_update
        clock.is_due = False
        self._exchanges.begin()
        self._averages.has_begun()  # in the replay: no later forward has to be executed for it

    def _meet(self, found: Any, register: Callable[[Any], Any]) -> None:
        """Registers an object when it is first seen; asked at every step."""
        if found not in self._met:
            if self._census.begin():
                self._recording.tape.append(EntryKind.TRAINING, b"")
            register(found)
            self._met.add(found)

    def _is_within_forward(self) -> bool:
        frame = sys._getframe(1) if self._interception.depth > 1 else None
        while frame is not None and frame.f_code is not Monitor.forward.__code__:
            frame = frame.f_back
        return frame is not None

    def _region(self, call: Call) -> Any:
        self._interception.depth += 1
        try:
            return call()
        finally:
            self._interception.depth -= 1

    def _see_loss(self, roots: Any) -> None:
        probe = self._progress.probe
        is_one = isinstance(roots, (torch.Tensor, GradientEdge)) or not isinstance(roots, Iterable)
        for root in (roots,) if is_one else roots:
            if not isinstance(root, torch.Tensor) or root.numel() != 1:
                continue  # or the edge of a graph, which has no value
            if self._scaled is not None and root is self._scaled[0]:
                root = self._scaled[1]
            probe.loss += read_number(root)
            probe.loss_seen = True
