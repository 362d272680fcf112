"""Steps that are judged one step later, so that nothing waits for their numbers.

A fused optimizer leaves an update out by itself where its `found_inf` is 1, as torch's own scaler
has it do. So what the guard would leave out is compared on the device, and its numbers are taken in
when the next step comes to its update. Nothing else about a step is known later than otherwise.
"""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from supervisor.ladder.guard import NO_LIMIT, NormLimit
from supervisor.pipeline import Pipeline
from supervisor.records import StepRecord
from supervisor.worker.core.device_values import (
    READ_AT_ONCE,
    LateRow,
    is_late,
    is_memory_pinned,
    treat_cpu_as_device,
)
from supervisor.worker.core.gradient_norms import gradients_of, norm_of_gradients
from supervisor.worker.core.run_health import RECENT
from supervisor.worker.core.worker_context import WorkerContext
from supervisor.worker.corruption.update_watch import UpdateWatch
from supervisor.worker.judging.step_judge import StepJudge
from supervisor.worker.probes.probes import Probes
from supervisor.worker.step_record.step_recorder import StepRecorder
from supervisor.worker.treatment.update_controls import UpdateControls

LARGEST = sys.float_info.max
"""No finite number is larger; NaN compares false with it."""

TAKE_A_FLAG = (Adam, AdamW, SGD, Adagrad)
"""Torch's optimizers whose fused kernels make no update where `found_inf` is 1."""

NOT_PINNED = (
    "no pinned memory can be had: each copy of a step's numbers waits for its device"
    " (device.late_reads)"
)


@dataclass(slots=True, kw_only=True)
class LateStep:
    """A step whose update was made before its numbers were here.

    Attributes:
        names: of the numbers in `numbers`: ``norm``, ``flag`` and what else came from its device.
        record, row: of the step, and its place in the flight recorder.
        loss, loss_seen: what of its loss was known at once.
        clips_at: the bound of the script's own clipping.
        is_scaled: the norm is that of gradients which are multiplied by the loss scale.
        sample, batch: its input, for what is to be found out about it.
    """

    step: int
    main: Optimizer
    names: tuple[str, ...]
    numbers: LateRow
    record: StepRecord
    row: int
    loss: float
    loss_seen: bool
    clips_at: float
    is_scaled: bool
    sample: Any
    batch: Any
    followers: list[tuple[int, Optimizer, LateRow]] = field(default_factory=list)


class LateSteps:
    """Called around the updates of each optimizer, by `Live`.

    A step may be late while the run is calm: 64 steps were judged since its start or the last
    trouble, nothing is treated, and the main optimizer takes a flag. Each other step waits once, as
    always.

    Attributes:
        is_on: there may be late steps, if the script trains on a device.
        on_left_out: called where an update was left out, once that is known.
        flagged: optimizers of updates under way that have a flag of ours, and what they had before:
            `update_ended` is to be called.
    """

    def __init__(
        self,
        context: WorkerContext,
        steps: StepRecorder,
        step_judge: StepJudge,
        pipeline: Pipeline,
        updates: UpdateControls,
        watch: UpdateWatch,
        probes: Probes,
    ) -> None:
        self._policy = context.policy
        self._progress = context.progress
        self._health = context.health
        self._warn = context.warn
        self._judging_part = context.breakers("judging")
        self._steps = steps
        self._step_judge = step_judge
        self._ladder = pipeline.ladder
        self._updates = updates
        self._watch = watch
        self._probes = probes
        self._waiting: LateStep | None = None
        self._eager_until = 0
        self.flagged: list[tuple[Optimizer, Any]] = []
        self._left: list[tuple[torch.Tensor, weakref.ref[torch.Tensor], int]] = []
        self._is_pinned = True
        self.on_left_out: Callable[[], None] = lambda: None
        self.is_on = self._is_wanted(context)
        step_judge.take_in = self.take_in

    def _is_wanted(self, context: WorkerContext) -> bool:
        wanted, order = context.settings.device.late_reads, context.order
        treat_cpu_as_device(wanted == "on")
        if wanted == "off" or (wanted == "auto" and not _may_have_device()):
            return False
        is_compared = context.is_experiment or context.settings.trail
        if not context.place.is_alone or is_compared or order.retry_until is not None:
            if wanted == "on":
                context.warn("device.late_reads=on: several ranks, and replays, wait once a step")
            return False
        return True

    # --- before an update --------------------------------------------------------------------

    def start(self, main: Optimizer) -> bool:
        """The main optimizer is about to make the update of the step under way.

        Returns:
            Whether the step is late: it is recorded, and the optimizer has its flag. Otherwise
            nothing is done, and its numbers are to be waited for.
        """
        progress = self._progress
        probe, waiting = progress.probe, progress.probe.on_device.waiting
        if not waiting:
            return False  # nothing is on a device
        is_special = probe.announced or probe.begins_training or self._probes.is_on
        if is_special or not self._is_calm() or not self._takes_flag(main):
            return False
        if probe.loss_seen and not math.isfinite(probe.loss):
            return False
        size = len(self._updates.parameters(main))
        is_clipped = probe.grad_norm is not None and probe.norm_of == size
        self._steps.see_gradients(main)
        scaler, theirs, scale = self._steps.scaler, _given(main, "found_inf"), None
        has_scaler = scaler is not None and scaler.is_enabled()
        if theirs is not None:
            scale = _given(main, "grad_scale")
        if has_scaler and scale is None:
            probe.saw_scale(scaler)
        numbers = {name: value for name, (value, _) in waiting.items()}
        for name, value in (("found", theirs), ("grad_scale", scale)):
            if value is not None:
                numbers[name] = value.detach().to(torch.float64).reshape(())
        limit = self._limit()
        devices = {value.device for value in numbers.values()}
        if limit is None or "norm" not in numbers or len(devices) != 1:
            if not is_clipped:
                waiting.pop("norm", None)
                probe.grad_norm = None  # computed again, with its scale
            return False
        is_scaled = scale is not None and not is_clipped
        self._send(main, numbers, limit, has_scaler=has_scaler, is_scaled=is_scaled)
        return True

    def _is_calm(self) -> bool:
        step, step_judge = self._progress.steps_done, self._step_judge
        is_known = step_judge.calm.knows_calm and self._judging_part.is_on
        return is_known and step >= self._eager_until and self._updates.is_as_it_is(step)

    def _takes_flag(self, optimizer: Optimizer) -> bool:
        return self._policy.observe_only or takes_flag(optimizer)

    def _limit(self) -> NormLimit | None:
        if self._policy.observe_only:
            return NO_LIMIT
        probe = self._progress.probe
        self._step_judge.foresee()
        moves = probe.others_trained or probe.is_in_environment
        return self._ladder.norm_limit(clips_at=probe.clips_at, has_moving_objective=moves)

    def _send(
        self,
        main: Optimizer,
        numbers: dict[str, torch.Tensor],
        limit: NormLimit,
        *,
        has_scaler: bool,
        is_scaled: bool,
    ) -> None:
        progress, steps, probe = self._progress, self._steps, self._progress.probe
        with torch._C.DisableTorchFunction():
            norm = numbers["norm"]
            if is_scaled:
                norm = norm / numbers["grad_scale"]
            loss = numbers.get("loss")
            if loss is not None and probe.loss:
                loss = loss + probe.loss
            bad = is_bad(loss, norm, limit, has_scaler=has_scaler)
            if not self._policy.observe_only:
                self._set_flag(main, bad)
            numbers["flag"] = bad.to(torch.float64)
        row = LateRow(list(numbers.values()))
        loss_seen, loss_known, clips_at = probe.loss_seen, probe.loss, probe.clips_at
        sample = steps.inputs.take()
        probe.on_device.forget()
        record = steps.record_later(main)
        self._waiting = LateStep(
            step=record.step,
            main=main,
            names=tuple(numbers),
            numbers=row,
            record=record,
            row=steps.row,
            loss=loss_known,
            loss_seen=loss_seen,
            clips_at=clips_at,
            is_scaled=is_scaled,
            sample=sample,
            batch=progress.last_batch,
        )
        if self._is_pinned and not is_memory_pinned():
            self._is_pinned = False
            self._warn(NOT_PINNED, aloud=True)

    def begin_follower(self, optimizer: Optimizer) -> bool:
        """The same for an optimizer that steps after the main optimizer, in a late step: it leaves
        its update out where its gradients are not finite."""
        late = self._waiting
        if late is None or not self._is_calm() or not self._takes_flag(optimizer):
            return False
        found = norm_of_gradients(gradients_of(self._updates.parameters(optimizer)))
        if not is_late(found):
            return False
        with torch._C.DisableTorchFunction():
            norm = found.detach().to(torch.float64)  # type: ignore[union-attr]
            if not self._policy.observe_only:
                self._set_flag(optimizer, ~(norm <= LARGEST))
            theirs = _given(optimizer, "found_inf") if not self.flagged else self.flagged[-1][1]
            skips = norm.new_zeros(()) if theirs is None else theirs.to(torch.float64).reshape(())
        late.followers.append((self._progress.steps_done, optimizer, LateRow([norm, skips])))
        return True

    def send_ahead(self, main: Optimizer) -> None:
        """A GradScaler is about to read whether the main optimizer's gradients are finite: what is
        to be read of the step comes with that, and nobody waits for it again."""
        probe, scaler = self._progress.probe, self._steps.scaler
        if getattr(main, "_optimizer_step_pre_hooks", None) or not probe.on_device.waiting:
            return  # the script may change its gradients
        self._steps.see_gradients(main)
        if scaler is not None and scaler.is_enabled():
            probe.saw_scale(scaler)
        probe.on_device.send()

    def _set_flag(self, optimizer: Optimizer, bad: torch.Tensor) -> None:
        """Kernels ask whether it is exactly 1, and count a step back by its value."""
        theirs, flag = _given(optimizer, "found_inf"), bad.to(torch.float32).reshape(())
        if theirs is not None:
            flag = torch.maximum(flag, theirs.to(flag.device, torch.float32).reshape(()))
        optimizer.found_inf = flag.clamp(max=1.0)  # type: ignore[attr-defined]
        self.flagged.append((optimizer, theirs))

    def update_ended(self) -> None:
        """The update under way was made, or failed: its optimizer has what it had before."""
        flagged, self.flagged = self.flagged, []
        for optimizer, theirs in flagged:
            if theirs is not None:
                optimizer.found_inf = theirs  # type: ignore[attr-defined]  # a scaler deletes it
            elif hasattr(optimizer, "found_inf"):
                del optimizer.found_inf
            for parameter in self._updates.parameters(optimizer):
                gradient = parameter.grad
                if gradient is not None:
                    self._left.append((parameter, weakref.ref(gradient), gradient._version))
                    break

    # --- one step later ----------------------------------------------------------------------

    def backward_begins(self) -> None:
        """The first backward of a step: what an update that was left out has left in `grad` must
        not be added to."""
        left, self._left = self._left, []
        for parameter, gradient, version in left:
            now = gradient()
            if now is not None and parameter.grad is now and now._version == version:
                self.take_in()  # the script has neither cleared nor changed it

    def take_in(self) -> None:
        """Has the late step judged, if there is one: before the next update, and before anything
        that keeps or ends the training."""
        late, self._waiting = self._waiting, None
        if late is None:
            return
        late.numbers.becomes_older()
        numbers = dict(zip(late.names, late.numbers.read(), strict=True))
        progress = self._progress
        record, has_begun = late.record, progress.probe.backward_calls > 0
        left_out = self._fill(late, numbers)
        if not has_begun and numbers.get("gradients", 0.0) > 0.0:
            progress.grads_matter = True
        batch, progress.last_batch = progress.last_batch, late.batch
        try:
            self._judge(late, left_out=left_out)
            if left_out:
                self.on_left_out()
                self._was_left_out(late.main, has_begun=has_begun)
                self._steps.mark_skipped(late.row)
                self._updates.was_left_out(late.step)
            elif record.scaler_skipped:
                self._watch.failed(late.main)  # torch counts writes where nothing was changed
            else:
                self._watch.norm_is(late.main, record.grad_norm, late.clips_at)
            for step, follower, row in late.followers:
                self._take_in_follower(step, follower, row, has_begun=has_begun)
        finally:
            progress.last_batch = batch

    def _fill(self, late: LateStep, numbers: dict[str, float]) -> bool:
        """Completes the record; returns whether the optimizer left its update out by our flag."""
        record = late.record
        record.loss_seen = late.loss_seen
        record.loss = late.loss + numbers.get("loss", 0.0) if late.loss_seen else math.nan
        record.grad_norm_seen, record.grad_norm = True, numbers["norm"]
        if late.is_scaled:
            record.grad_norm /= numbers["grad_scale"]
        if "grad_scale" in numbers or "scale" in numbers:
            record.loss_scale = numbers.get("grad_scale", numbers.get("scale", math.nan))
        if numbers.get("found", 0.0) > 0.0:
            record.scaler_skipped, record.grad_norm = True, math.inf
        self._steps.complete(record, late.row, late.sample)
        is_ours = not (record.scaler_skipped or self._policy.observe_only)
        return is_ours and numbers["flag"] > 0.0

    def _judge(self, late: LateStep, *, left_out: bool) -> None:
        part = self._judging_part
        try:
            if part.is_on:
                self._step_judge.judge(late.record, late.row, is_in_time=left_out)
        except BaseException as error:
            part.caught(error)
        if left_out or self._health.is_warning:
            self._eager_until = self._progress.steps_done + RECENT

    def _take_in_follower(
        self, step: int, optimizer: Optimizer, row: LateRow, *, has_begun: bool
    ) -> None:
        row.becomes_older()
        norm, scaler_skips = row.read()
        if scaler_skips > 0.0:
            self._watch.failed(optimizer)
        elif not math.isfinite(norm):
            if not self._policy.observe_only:
                self._was_left_out(optimizer, has_begun=has_begun)
            self._updates.follower_has_norm(step, norm)
            self._eager_until = self._progress.steps_done + RECENT

    def _was_left_out(self, optimizer: Optimizer, *, has_begun: bool) -> None:
        """What it has left in `grad` is zeroed, unless the next step has its own there."""
        self._watch.failed(optimizer)
        for parameter in () if has_begun else self._updates.parameters(optimizer):
            if parameter.grad is not None:
                parameter.grad.zero_()


def is_bad(
    loss: torch.Tensor | None, norm: torch.Tensor, limit: NormLimit, *, has_scaler: bool
) -> torch.Tensor:
    """Returns on their device whether an update is to be left out: the guard's rule.

    Args:
        loss, norm: of one element, float64; no loss was seen, or it is known to be finite: None.
        limit: of the norm.
        has_scaler: a GradScaler leaves out what is not finite itself.
    """
    bad = norm > limit.norm if limit.loss == -math.inf or loss is None else None
    if bad is None:
        assert loss is not None
        bad = (norm > limit.norm) & (loss > limit.loss)
    is_finite = norm <= LARGEST
    bad = bad & is_finite if has_scaler else bad | ~is_finite
    return bad if loss is None else bad | ~(loss.abs() <= LARGEST)


def takes_flag(optimizer: Optimizer) -> bool:
    """Whether an update is left out, exactly, where `found_inf` of the optimizer is 1.

    A fused SGD with momentum, whose first update is left out, keeps momentum that nobody has
    written to (libreyolo/libreyolo#771): it has to wait there.
    """
    groups = optimizer.param_groups
    if type(optimizer) not in TAKE_A_FLAG or not all(group.get("fused") for group in groups):
        return False
    if type(optimizer) is not SGD:
        return True
    state = optimizer.state
    return not any(
        group["momentum"] and state[p].get("momentum_buffer") is None
        for group in groups
        for p in group["params"]
        if p.grad is not None
    )


def _given(optimizer: Optimizer, name: str) -> Any:
    """What a GradScaler has set for the update under way; None without one."""
    return getattr(optimizer, name, None)


def _may_have_device() -> bool:
    """Whether this torch was built for a device that somebody waits for. Whether there is one is
    not asked: that begins the driver, and the script may still fork processes that use it."""
    found = torch.accelerator.current_accelerator()
    return found is not None and found.type not in READ_AT_ONCE
