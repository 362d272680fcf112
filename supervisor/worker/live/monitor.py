"""The live run: sees each step, judges it before its update, and acts at the boundary.

`Monitor` is the inner loop of the whole product. A step passes through three places:

* `before_update`: the record is complete, the pipeline judges it, and what concerns this update
  alone (skip, learning rate, clipping) is applied;
* `after_update`: what was changed for this update is put back;
* the boundary, the entry of the first forward after it: scheduler, scaler update, EMA and the
  user's bookkeeping are done, so the state is whole. Checkpoints and rollbacks happen here.
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

from supervisor.fault_injection.injector import FaultInjector
from supervisor.storage.steps.flight_recorder import SCALER_SKIPPED, UPDATE_SKIPPED, FlightRecorder
from supervisor.storage.steps.tape import EntryKind
from supervisor.training_state.registry import Registry
from supervisor.worker.ground.boundary_clock import BoundaryClock
from supervisor.worker.ground.boundary_schedule import BoundarySchedule
from supervisor.worker.ground.error_barrier import ErrorBarrier
from supervisor.worker.ground.interception_state import InterceptionState
from supervisor.worker.ground.step_probe import StepProbe, gradient_norm, has_values, read_number
from supervisor.worker.interception.training_hooks import Call, TrainingHooks
from supervisor.worker.live.seen_closure import SeenClosures
from supervisor.worker.live.unseen_updates import MANY_BACKWARDS
from supervisor.worker.probes.probes import Probes
from supervisor.worker.recording.loading_proof import LoadingProof
from supervisor.worker.recording.recording import Recording, encode
from supervisor.worker.replay.loading.loader_skipping import pack_epoch, pack_mark
from supervisor.worker.treatment.dispatcher import Dispatcher
from supervisor.worker.treatment.update_controls import POISONED, UpdateControls


class Monitor(TrainingHooks):
    """See the module's docstring.

    Args:
        boundaries: which boundaries are looked at.
        at_boundary: called at these with the number of steps done; saves, applies pending actions,
            may leave the process.
        at_new_training: called with the number of steps done when another optimizer takes over,
            and whether it updates other weights.
        at_many_backwards: called once when many gradients were made and no update was seen yet.

    Attributes:
        trains_within_forward: the first update came from within a module's forward (a meta-learner
            that trains when it is called). A replay does nothing in a forward, so it cannot follow.
    """

    def __init__(
        self,
        *,
        interception: InterceptionState,
        registry: Registry,
        recorder: FlightRecorder,
        recording: Recording,
        dispatcher: Dispatcher,
        updates: UpdateControls,
        injector: FaultInjector,
        barrier: ErrorBarrier,
        probes: Probes,
        boundaries: BoundarySchedule,
        at_boundary: Callable[[int], None],
        at_new_training: Callable[[int, bool], None],
        at_many_backwards: Callable[[], None],
        heartbeat: Callable[[int], None],
    ) -> None:
        self.steps_done = 0
        self.probe = StepProbe()
        self._interception = interception
        self._registry = registry
        self._recorder = recorder
        self._recording = recording
        self._random = recording.random
        self._tape = recording.tape
        self._dispatcher = dispatcher
        self._updates = updates
        self._closures = SeenClosures(interception)
        self._injector = injector
        self._probes = probes
        self._armed = injector.is_armed
        self._forward_shield = barrier("forward")
        self._loss_shield = barrier("loss")
        self._scaler_shield = barrier("scaler")
        self._clipping_shield = barrier("clipping")
        self._batch_shield = barrier("batch")
        self._update_shield = barrier("update")
        self._boundaries = boundaries
        self._at_boundary = at_boundary
        self._at_new_training = at_new_training
        self._at_many_backwards = at_many_backwards
        self._heartbeat = heartbeat
        self._last_module: Callable[[], Module | None] = lambda: None
        self._first_parameter: Callable[[], torch.Tensor | None] = lambda: None
        self._lead_size = self._lead_groups = 0
        self._boundary_at = -1  # a replay arrives at a step's first boundary: there is no second
        self._met: dict[int, weakref.ref[Any]] = {}
        self._clock = BoundaryClock()
        self._scaled: tuple[Any, Any, float] | None = None
        self._scaler: Any = None
        self._row = -1
        self._judged = False
        self._is_updating = False
        self.grads_matter = False
        self.trains_within_forward = False

    # --- regions -----------------------------------------------------------------------------

    def forward(
        self, module: Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], call: Call
    ) -> Any:
        interception = self._interception
        interception.depth += 1
        try:
            try:
                if module is not self._last_module():
                    self._meet(module, self._registry.add_model)
                    self._last_module = weakref.ref(module)
                clock = self._clock
                if clock.is_due:
                    clock.passed()
                    self._pass_boundary()
                self.probe.saw_forward(args, kwargs)
                self._heartbeat(self.steps_done)
            except Exception as error:
                self._forward_shield.caught(error)
            if self._armed:
                call = self._injector.on_forward(self.steps_done, module, args, kwargs, call)
            trail = self._random
            if trail.forwards_draw and module.training:
                output = call()
                trail.note()
            else:
                earlier = trail.before()
                output = call()
                trail.after(earlier)
            return self._injector.on_output(self.steps_done, output) if self._armed else output
        finally:
            interception.depth -= 1

    def backward(self, roots: Any, call: Callable[[Any], Any]) -> Any:
        interception = self._interception
        interception.depth += 1
        try:
            try:
                if self._armed:
                    roots = self._injector.on_loss(self.steps_done, roots)
                probe = self.probe
                if not probe.backward_calls:
                    first = self._first_parameter()
                    gradient = None if first is None else first.grad
                    self.grads_matter = gradient is not None and has_values(gradient)
                probe.backward_calls += 1
                if probe.backward_calls == MANY_BACKWARDS and not self.steps_done:
                    self._at_many_backwards()
                if type(roots) is torch.Tensor and self._scaled is None and not roots.shape:
                    probe.loss += read_number(roots)
                    probe.loss_seen = True
                else:
                    self._see_loss(roots)
            except Exception as error:
                self._loss_shield.caught(error)
            trail = self._random
            if trail.backwards_are_quiet:
                return call(roots)
            earlier = trail.before_backward()
            result = call(roots)
            trail.after_backward(earlier)
            return result
        finally:
            interception.depth -= 1

    def grad(self, call: functools.partial[Any]) -> Any:
        found = self._region(call)
        given = found.values() if isinstance(found, dict) else found
        unused = [place for place, gradient in enumerate(given) if gradient is None]
        if unused:
            self._tape.append(EntryKind.UNUSED, encode(EntryKind.UNUSED, unused))
        return found

    def scale(self, scaler: Any, outputs: Any, call: Call) -> Any:
        result = self._region(call)
        self._scaler = scaler
        if isinstance(outputs, torch.Tensor) and scaler.is_enabled():
            self._scaled = (result, outputs, 0.0)
        return result

    def scaler_step(self, scaler: Any, optimizer: Optimizer, call: Call) -> Any:
        self._judged = False
        result = self._region(call)
        if not self._judged:
            with self._scaler_shield:
                if self._leads(optimizer):
                    self._scaler_left_it_out(optimizer)
                else:
                    self._count_other(optimizer)  # as a replay does, which leaves nothing out
        return result

    def scaler_call(self, call: Call) -> Any:
        return self._region(call)

    def clip(
        self, parameters: list[torch.Tensor], max_norm: float, call: Callable[[float], Any]
    ) -> Any:
        interception = self._interception
        interception.depth += 1
        try:
            try:
                if self._armed:
                    self._injector.on_gradients(self.steps_done, parameters)
                max_norm = self._updates.clip_norm_for_script(max_norm)
            except Exception as error:
                self._clipping_shield.caught(error)
            norm = call(max_norm)
            try:
                size = len(parameters)
                if size == self._lead_size or not self._lead_size:
                    self.probe.grad_norm = read_number(norm)
                    self.probe.norm_of = size
                    self.probe.clips_at = float(max_norm)
            except Exception as error:
                self._clipping_shield.caught(error)
            return norm
        finally:
            interception.depth -= 1

    def read(self, kind: int, call: Call) -> Any:
        return self._recording.read(kind, call)

    def fetch(self, proof: LoadingProof, indices: Any, call: Call, *, must_load: bool) -> Any:
        earlier = self._random.look() if proof.notes_random else None
        forward_calls = self.probe.forward_calls
        batch = proof.watch(indices, call)
        with self._batch_shield:
            if self.probe.forward_calls != forward_calls:
                proof.reason = "loading runs a model"
            proof.decide()
            mark = b"" if proof.is_given_up else self._region(lambda: pack_mark(indices, batch))
            self._tape.append(EntryKind.BATCH, mark)
            if earlier is not None:
                self._random.note_changes(earlier)
        return batch

    def skips_epoch(self, number: int) -> bool:
        return False

    def epoch_ended(self, number: int) -> None:
        self._tape.append(EntryKind.EPOCH_END, pack_epoch(number))

    def batch(self, batch: Any) -> Any:
        self._interception.depth += 1
        try:
            self.probe.saw_batch(batch)
            self._dispatcher.last_batch = batch
            self._heartbeat(self.steps_done)
        except Exception as error:
            self._batch_shield.caught(error)
        finally:
            self._interception.depth -= 1
        return batch

    # --- the update --------------------------------------------------------------------------

    def before_update(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        self._interception.depth += 1
        try:
            self._judged = True
            if self._is_updating:
                return None  # an optimizer around another: what the inner one does is its own
            self._meet(optimizer, self._registry.add_optimizer)
            if self._clock.lead() is None:
                self.trains_within_forward = self._is_within_forward()
            is_lead = self._is_updating = self._leads(optimizer)
            closure = args[0] if args else kwargs.get("closure")
            if closure is not None:
                plan = functools.partial(self._plan_in_closure, optimizer, is_lead)
                return self._closures.wrap(optimizer, args, kwargs, plan)
            self._plan(optimizer, is_lead=is_lead)
            return None
        except Exception as error:
            self._update_shield.caught(error)
            return None

    def _plan_in_closure(self, optimizer: Optimizer, is_lead: bool, earlier: int) -> None:
        """Between the closure's last backward and the update; later evaluations change nothing
        of the plan, but bring new gradients, which a skipped update must not see either."""
        try:
            with torch.no_grad():
                if not earlier:
                    self._plan(optimizer, is_lead=is_lead)
                else:
                    self._updates.hide_again(optimizer)
        except Exception as error:
            self._update_shield.caught(error)

    def _plan(self, optimizer: Optimizer, *, is_lead: bool) -> None:
        if self._armed:
            self._injector.on_gradients(self.steps_done, self._updates.parameters(optimizer))
        step, updates = self.steps_done, self._updates
        if is_lead:
            plan = updates.plan(optimizer, step, POISONED if self._judge(optimizer) else "")
            if plan.skip:
                self._recorder.mark(self._row, flags=UPDATE_SKIPPED)
        else:
            plan = updates.plan_follower(optimizer, step)
        updates.apply(optimizer, step, plan)
        if self._armed:
            self._injector.before_step(self.steps_done, optimizer)

    def after_update(self, optimizer: Optimizer) -> None:
        try:
            clock = self._clock
            is_lead = optimizer is clock.lead()
            if is_lead or not self._is_updating:
                self._is_updating = False
                self._end_update(optimizer, is_lead=is_lead)
                if clock.is_due and not clock.has_forwards:
                    self._pass_boundary()
        except Exception as error:
            self._update_shield.caught(error)
        finally:
            self._interception.depth = max(0, self._interception.depth - 1)

    def _end_update(self, optimizer: Optimizer, *, is_lead: bool) -> None:
        if is_lead and self._row < 0:
            # A closure that was not called as often as the time before.
            self._judge(optimizer, is_in_time=False)
        if self._updates.is_open:
            self._updates.end()
        if self._armed:
            self._injector.on_updated(self.steps_done, optimizer)
        if is_lead:
            self._finish_step(optimizer)
            self._clock.updated(optimizer)
        else:
            self._count_other(optimizer)

    def _pass_boundary(self) -> None:
        step, boundaries = self.steps_done, self._boundaries
        if self._boundary_at != step:
            self._boundary_at = step
            if step >= boundaries.step or time.monotonic() >= boundaries.time:
                self._at_boundary(step)

    def update_failed(self, optimizer: Optimizer) -> None:
        """A step that was recorded counts as made: no two may have its number."""
        try:
            is_lead = optimizer is self._clock.lead()
            if self._is_updating and not is_lead:
                return  # the outer one may catch it
            self._is_updating = False
            self._updates.end()
            if is_lead and self._row >= 0:
                self._finish_step(optimizer)
                self._clock.updated(optimizer)
        except Exception as error:
            self._update_shield.caught(error)

    def _judge(
        self, optimizer: Optimizer, *, is_in_time: bool = True, scaler_skipped: bool = False
    ) -> bool:
        """Records the step under way; returns whether its update is to be left out."""
        probe = self.probe
        parameters = self._see_gradients(optimizer)
        if scaler_skipped:
            probe.grad_norm = float("inf")
        if self._scaler is not None and self._scaler.is_enabled():
            probe.loss_scale = float(self._scaler.get_scale())
        if self._probes.is_on:
            looked = self._probes.before_update(
                self.steps_done, optimizer, parameters, probe.grad_norm
            )
            probe.observed = {**looked, **probe.observed}
        now = time.time()
        record = probe.record(self.steps_done, now, optimizer, scaler_skipped=scaler_skipped)
        self._row = self._recorder.append(
            record,
            time=now,
            backward_calls=probe.backward_calls,
            forward_calls=probe.forward_calls,
            batch_signature=probe.signature,
            flags=SCALER_SKIPPED if scaler_skipped else 0,
        )
        return self._dispatcher.judge(record, self._row, is_in_time=is_in_time)

    def _see_gradients(self, lead: Optimizer) -> list[torch.Tensor]:
        """Gets to know the gradient norm, if the script's clipping has not told it; returns all
        parameters."""
        probe = self.probe
        parameters = self._updates.parameters(lead)
        self._lead_size, self._lead_groups = len(parameters), len(lead.param_groups)
        if probe.grad_norm is None or probe.norm_of != self._lead_size:
            probe.grad_norm = gradient_norm(parameters)  # as it is after any clipping
            probe.clips_at = math.inf
            probe.norm_of = self._lead_size
        if parameters and self._first_parameter() is not parameters[0]:
            self._first_parameter = weakref.ref(parameters[0])
        return parameters

    def _finish_step(self, lead: Optimizer) -> None:
        probe = self.probe
        self._tape.append_step(
            self.steps_done,
            float(lead.param_groups[0]["lr"]),
            probe.backward_calls,
            probe.forward_calls,
            probe.signature,
        )
        controls = self._updates.controls
        if controls.ramp is not None or controls.adaptive is not None:
            controls.advance(math.nan if probe.grad_norm is None else probe.grad_norm)
        probe.forget()
        if self._probes.is_on:
            probe.observed.update(self._probes.after_update(self.steps_done))
        self._scaled = None
        self._row = -1
        self._count_step()

    def _count_step(self) -> None:
        self.steps_done += 1
        if self.steps_done >= self._probes.next_step:
            self._probes.begin(self.steps_done)
        if self._armed:
            self._injector.on_step_done(self.steps_done)

    def _leads(self, optimizer: Optimizer) -> bool:
        """Whether `optimizer` is the lead, or becomes it with this update."""
        clock = self._clock
        is_lead = clock.is_lead(optimizer)
        if clock.is_new_lead:
            clock.is_new_lead = False
            self.probe.begins_training = clock.is_new_training
            self._at_new_training(self.steps_done, clock.is_new_training)
        return is_lead

    def _count_other(self, optimizer: Optimizer) -> None:
        """An update that is not the lead's; one of many in a row begins another training."""
        if self.probe.backward_calls:
            self.probe.others_trained = True
        if self._clock.updated(optimizer):
            self.probe.forget()
            self.probe.begins_training = True
            self._at_new_training(self.steps_done, True)

    def _scaler_left_it_out(self, optimizer: Optimizer) -> None:
        self._interception.depth += 1
        try:
            self._judge(optimizer, is_in_time=False, scaler_skipped=True)
            self._finish_step(optimizer)
            self._clock.updated(optimizer)
        finally:
            self._interception.depth -= 1

    @property
    def updates_by_others(self) -> int:
        """Updates of other optimizers since the last step."""
        return self._clock.by_others

    # --- helpers -----------------------------------------------------------------------------

    def continue_at(self, steps_done: int, clock: BoundaryClock) -> None:
        """Takes over from a fast-forward that stands at the boundary of `steps_done`."""
        self.steps_done = self._boundary_at = steps_done
        self._clock = clock
        clock.is_due = False

    def _meet(self, found: Any, register: Callable[[Any], Any]) -> None:
        """Registers an object when it is first seen; asked at every step, so by its id first."""
        known = self._met.get(id(found))
        if known is None or known() is not found:
            register(found)
            self._met[id(found)] = weakref.ref(found)

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
        probe = self.probe
        is_one = isinstance(roots, (torch.Tensor, GradientEdge)) or not isinstance(roots, Iterable)
        for root in (roots,) if is_one else roots:
            if not isinstance(root, torch.Tensor) or root.numel() != 1:
                continue  # or the edge of a graph, which has no value
            if self._scaled is not None and root is self._scaled[0]:
                root = self._scaled[1]
            probe.loss += read_number(root)
            probe.loss_seen = True
