"""The replay driver: runs the script again up to a checkpoint's step, without the training.

The user's Python really runs; of regions the first of each kind is executed, later ones do nothing
but count; values read from tensors come off the replay log, and every step is compared with the
recorded one. At the target the state is put back and the live monitor takes over, in the middle of
the very call that the checkpoint was made in.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer

from supervisor.actions.controls import hide_gradients
from supervisor.storage.steps.replay_log import EntryKind, StepMark
from supervisor.storage.steps.replay_log_reader import ReplayLogReader
from supervisor.training_state.optimizer_state import learning_rate
from supervisor.training_state.registry import Registry
from supervisor.worker.core.boundary_clock import BoundaryClock
from supervisor.worker.core.call_state import CallState, is_within_compiled
from supervisor.worker.core.loop_count import LoopCount
from supervisor.worker.core.replay_comparison import ReplayComparison
from supervisor.worker.core.step_probe import StepProbe
from supervisor.worker.core.training_hooks import Call, TrainingHooks
from supervisor.worker.gradients.called_hooks import RecordedHooks
from supervisor.worker.gradients.replayed_gradients import (
    LeafGradients,
    ZeroGradients,
    zero_gradients,
)
from supervisor.worker.loading.loader_hooks import ReplayedLoaders
from supervisor.worker.loading.loader_skipping import RecordedData
from supervisor.worker.loading.placeholder_tracker import PlaceholderTracker
from supervisor.worker.random_state.random_states import RandomReplay
from supervisor.worker.ranks.silenced_collectives import SilencedCollectives
from supervisor.worker.reads.recording import decode
from supervisor.worker.reads.script_reads import RecordedReads
from supervisor.worker.regions.cached_outputs import CachedOutputs
from supervisor.worker.regions.executed_regions import ExecutedRegions, no_norm

_TIMED, _FEW = 1000, 100
"""Steps whose times are kept; so many, or less, are few."""


class Replay(TrainingHooks):
    """See the module's docstring.

    Args:
        target: steps done at the checkpoint's boundary.
        at_update: that boundary is at the end of an update (`BoundaryClock`).
        update_result: what that update returned; None for nothing.
        skips: numbers of the data sets whose batches may be others, see `LoaderSkipping`.
        data: what the checkpoint holds of the script's data.
        guard: follows those others, where there may be any.
        collectives: silenced from the first step on.
        arrive: called at the target, within the first forward after it: restores and makes the
            live moments the current ones. Its argument is None, or why this is not the recorded
            run; then it is called at the next boundary, wherever that is.
        mismatch: why there is no replay log from the beginning on; None if there is one.
        count: there is no replay log, and updates are counted to another target; None for none.
        before_training: called before forwards and updates of the first step.
        before_first_update: called before updates of the first step.
        heartbeat: called at each forward, batch and step of the replay, with the steps done.

    Attributes:
        reads, loading, gradient_hooks, random: answer the patches of these subjects.
        collectives: silenced in the replay.
    """

    def __init__(
        self,
        *,
        call_state: CallState,
        registry: Registry,
        replay_log: ReplayLogReader,
        target: int,
        at_update: bool = False,
        update_result: Any = None,
        skips: Collection[int] = (),
        data: RecordedData | None = None,
        guard: PlaceholderTracker | None = None,
        collectives: SilencedCollectives | None = None,
        count: LoopCount | None = None,
        arrive: Callable[[int, str | None], TrainingHooks],
        mismatch: str | None = None,
        before_training: Callable[[], object] = lambda: None,
        before_first_update: Callable[[], object] = lambda: None,
        heartbeat: Callable[[int], None] = lambda steps: None,
    ) -> None:
        self.guard = guard
        self.comparison = ReplayComparison(target, self._disproved, mismatch)
        self.clock = BoundaryClock(of_ranks=collectives is not None)
        self.clock.at_update = at_update
        self._update_result = update_result
        self._call_state = call_state
        self._registry = registry
        self._replay_log = replay_log
        self.count = count
        self._arrive = arrive
        self._before_training = before_training
        self._before_first_update = before_first_update
        self._heartbeat = heartbeat
        self.random = RandomReplay(replay_log)
        self.loading: ReplayedLoaders = ReplayedLoaders(
            replay_log,
            call_state,
            self.comparison,
            allowed=skips if guard is not None else (),
            hand_out=guard.hand_out if guard is not None else lambda batch: None,
            data=data or RecordedData({}),
            saw_batch=self._saw_batch,
        )
        self._probe = StepProbe()
        self._outputs = CachedOutputs()
        self._zero_gradients = zeros = ZeroGradients()
        self.gradient_hooks = RecordedHooks(
            replay_log, call_state, self.comparison, registry, zeros.of
        )
        self._leaves = LeafGradients(registry.retained, self._outputs.has)
        self._unhide: Callable[[], None] | None = None
        self._is_updating = self._is_executed = False
        self.collectives = collectives or SilencedCollectives()
        self.reads = RecordedReads(replay_log, call_state, self.comparison, self.collectives, count)
        self.collectives.silent_early = self.reads.begin_early
        self._executed = ExecutedRegions(self.collectives, zeros.saw)
        self.compiles_anew = collectives is not None  # within whose mode nothing is compiled
        self._ended_s: deque[float] = deque(maxlen=_TIMED)

    @property
    def steps_done(self) -> int:
        return self.comparison.steps_done

    @property
    def mismatch(self) -> str | None:
        return self.comparison.mismatch

    @property
    def step_s(self) -> float | None:
        """Seconds that a step took lately, with beginnings of epochs; of a few
        steps, of which the first ones are slow, the median. None before the end of the second."""
        times = sorted(after - before for before, after in itertools.pairwise(self._ended_s))
        if len(times) > _FEW:
            return sum(times) / len(times)
        return times[len(times) // 2] if times else None

    def hand_over(self, probe: StepProbe, loss: float | None) -> None:
        """Gives the live probe what was seen of the step under way before its boundary: the first
        batch, and what a second optimizer did after the main optimizer's update.

        Args:
            loss: that part of the step's loss, from the checkpoint; a replay computes none.
        """
        if loss is not None:
            probe.loss, probe.loss_seen = loss, True
        probe.signature = self._probe.signature
        probe.backward_calls = self._probe.backward_calls
        probe.forward_calls = self._probe.forward_calls

    def watch_stand_ins(self, reached: Callable[[], None]) -> None:
        """Has `reached` called if a backward of the live run comes to an output of the replay."""
        self._outputs.watch(reached)

    def take_gradients_back(self) -> None:
        """Called at the target: no leaf of the script keeps a gradient that a replay gave it."""
        self._leaves.take_back()

    def catch_up(self) -> None:
        """Called at the target: what still stands behind batches that were left out moves on."""
        self.loading.catch_up()

    # --- regions -----------------------------------------------------------------------------

    def forward(
        self, module: Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], call: Call
    ) -> Any:
        call_state = self._call_state
        call_state.depth += 1
        try:
            if not self.steps_done:
                if self.clock.is_before_training():
                    return call()
                self._begin_training()
            self._registry.add_model(module)
            self.clock.has_forwards = True
            if self._is_arrival() and self.clock.is_due_here():
                live = self._arrive(self.steps_done, self.mismatch)
                call_state.depth -= 1
                try:
                    return live.forward(module, args, kwargs, call)
                finally:
                    call_state.depth += 1
            self.clock.passed()
            self._probe.saw_forward(args, kwargs)
            self._heartbeat(self.steps_done)
            executes = self._executed.executes_forward(module, anew=self._has_first_average())
            call = functools.partial(self._executed.run, call)
            output = self._outputs.output(module, args, kwargs, call, executes=executes)
            self._executed.forward_ended()
            if executes:
                self._leaves.executed_forward(module)
            else:
                self._leaves.saw(module, (args, kwargs, output))
            self._replay_random()
            return output
        finally:
            call_state.depth -= 1

    def backward(self, roots: Any, call: Callable[[Any], Any]) -> Any:
        self._probe.backward_calls += 1
        optimizers = self._registry.optimizers.values()
        with self.gradient_hooks.backward(is_first_step=self._executed.is_first_step):
            self._region(functools.partial(self._executed.backward, roots, call, optimizers))
            self._leaves.executed_backward()
            with self.gradient_hooks.given_alone():
                self._zero_gradients.give(optimizers)
                self._leaves.give(roots)
            self._executed.notes.give(optimizers)
            self.gradient_hooks.call()
        self._replay_random()
        if self.gradient_hooks.has_updated:
            self.clock.backward_ended()
            self._arrive_at_update()
        return None

    def grad(self, call: functools.partial[Any]) -> Any:
        self._call_state.depth += 1
        try:
            unused = ()
            if self.reads.are_logged and self._replay_log.peek() == EntryKind.UNUSED:
                unused = decode(EntryKind.UNUSED, self._replay_log.take(EntryKind.UNUSED))
            if self._executed.is_first_step:
                return call()
            return zero_gradients(call, unused)
        finally:
            self._call_state.depth -= 1

    def graph_replays(self) -> None:
        self._disproved("the script replays a CUDA graph, which the recorded run did not")

    def scale(self, scaler: Any, outputs: Any, call: Call) -> Any:
        return self._region(call)

    def scaler_step(self, scaler: Any, optimizer: Optimizer, call: Call) -> Any:
        optimizer.step()
        return None

    def scaler_reads(self, optimizer: Optimizer, call: Call) -> Any:
        return call()

    def scaler_call(self, call: Call) -> Any:
        return None

    def clip(
        self, parameters: list[torch.Tensor], max_norm: float, call: Callable[[float], Any]
    ) -> Any:
        return no_norm(parameters)

    def _saw_batch(self, batch: Any) -> None:
        self._call_state.depth += 1
        try:
            self._probe.saw_batch(batch)
            self._heartbeat(self.steps_done)
        finally:
            self._call_state.depth -= 1

    # --- the update --------------------------------------------------------------------------

    def before_update(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if not self.steps_done:
            self._region(self._begin_training)
            self._region(self._before_first_update)
        self._registry.add_optimizer(optimizer)
        self.compiles_anew = self.compiles_anew or is_within_compiled()
        if self._is_updating:  # as in the recorded run, see `Live`
            self._call_state.depth += 1
            return None
        self._is_updating = self.clock.is_main(optimizer)
        closure = args[0] if args else kwargs.get("closure")
        if closure is not None and self._is_arrival():
            # The forward of this boundary lies within the closure, within the optimizer's step.
            # What we read while we put the state back is not the script's.
            self._call_state.depth += 1
            try:
                live = self._arrive(self.steps_done, self.mismatch)
            finally:
                self._call_state.depth -= 1
            return live.before_update(optimizer, args, kwargs)
        self._call_state.depth += 1
        executed = self._executed.begin_update(optimizer) if closure is None else None
        self._is_executed = executed is not None
        self._unhide = executed or hide_gradients(optimizer, self._zero_gradients.are_still_zero)
        if closure is None:
            return None
        expected = self._recorded_backward_calls()
        depth, self._call_state.depth = self._call_state.depth, 0
        try:
            result, evaluations = None, 0
            while self._probe.backward_calls < expected:
                before = self._probe.backward_calls
                result = closure()
                evaluations += 1
                if self._probe.backward_calls == before:
                    break
        finally:
            self._call_state.depth = depth
        self.clock.evaluations[optimizer] = evaluations
        return (lambda: torch.as_tensor(0.0) if result is None else result.detach(),), {}

    @property
    def leaves_update_out(self) -> bool:
        return self._unhide is not None and not self._is_executed

    def after_update(self, optimizer: Optimizer, result: Any) -> Any:
        is_main = optimizer is self.clock.main()
        if self._is_updating and not is_main:
            self._call_state.depth = max(0, self._call_state.depth - 1)
            return result
        self._is_updating = False
        if self._unhide is not None:
            self._unhide()
            self._unhide = None
        self._call_state.depth = max(0, self._call_state.depth - 1)
        if is_main:
            self._region(functools.partial(self._finish_step, optimizer))  # a rate may be a tensor
        if self.clock.updated(optimizer):
            self._probe.forget()
        if self.gradient_hooks.are_due:
            self.gradient_hooks.has_updated = True
            self.clock.updated_in_backward(optimizer)
        elif self._arrive_at_update() and self._update_result is not None:
            return self._update_result
        return result

    def _arrive_at_update(self) -> bool:
        if not (self._is_arrival() and self.clock.is_due_at_update()):
            return False
        self._region(lambda: self._arrive(self.steps_done, self.mismatch))
        return True

    def update_failed(self, optimizer: Optimizer) -> None:
        self._is_updating = False
        if self._unhide is not None:
            self._unhide()
            self._unhide = None
        self.comparison.disprove(
            f"step {self.steps_done}: an update raised that did not in the recorded run"
        )

    def _finish_step(self, main: Optimizer) -> None:
        probe = self._probe
        now = (
            self.steps_done,
            learning_rate(main),
            probe.backward_calls,
            probe.forward_calls,
            probe.signature,
        )
        if self.comparison.holds:
            with self.comparison:
                self.comparison.compare(self._replay_log.take(EntryKind.STEP), now)
        probe.forget()
        self._executed.step_ended()
        self._leaves.step_ended()
        self.comparison.steps_done += 1
        self._ended_s.append(time.perf_counter())
        self._heartbeat(self.steps_done)

    def _disproved(self, why: str) -> None:
        if self.guard is not None:
            self.guard.disproved(why)

    def _begin_training(self) -> None:
        self._before_training()
        self.collectives.start()
        if self.comparison.holds:
            with self.comparison:
                if not self._replay_log.begin_training():
                    self.loading.load_all()  # its data sets may have other numbers

    # --- helpers -----------------------------------------------------------------------------

    def _has_first_average(self) -> bool:
        """Whether a wrapper began to average in the forward that comes, in the recorded run."""
        if not self.reads.are_logged or self._replay_log.peek() != EntryKind.FIRST_AVERAGE:
            return False
        number = decode(EntryKind.INT, self._replay_log.find_next(EntryKind.FIRST_AVERAGE) or b"")
        if number != self._probe.forward_calls:
            return False  # in a later one of this step
        self._replay_log.take(EntryKind.FIRST_AVERAGE)
        return True

    def _is_arrival(self) -> bool:
        if not self.clock.is_due:
            return False
        if self.count is not None:
            return self.steps_done >= self.count.target(splits_data=self._registry.splits_data)
        return self.steps_done >= self.comparison.target or self.mismatch is not None

    def _recorded_backward_calls(self) -> int:
        data = self._replay_log.find_next(EntryKind.STEP)
        return 1 if data is None else StepMark.unpack(data).backward_calls

    def _replay_random(self) -> None:
        if self.comparison.holds:
            with self.comparison:
                self.random.passed()

    def _region(self, call: Call) -> Any:
        self._call_state.depth += 1
        try:
            return call()
        finally:
            self._call_state.depth -= 1
