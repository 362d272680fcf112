"""Starting from a checkpoint: the fast-forward to it, and what is put back there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.nn import Module

from supervisor.errors import ReplayError
from supervisor.storage.checkpoints.checkpoints import Checkpoint
from supervisor.storage.checkpoints.pipeline_file import read_pipeline
from supervisor.storage.steps.tape import EntryKind, TapeReader
from supervisor.training_state.comparison import first_difference
from supervisor.training_state.held_values import storages
from supervisor.training_state.state import ALL_PARTS
from supervisor.training_state.variables import places
from supervisor.worker.capture.user_tensors import registry_tensors
from supervisor.worker.ground.user_frames import modules_in, user_frames
from supervisor.worker.interception.hook_state import hook_state
from supervisor.worker.interception.outside_dynamo import forget_compiled
from supervisor.worker.interception.training_hooks import TrainingHooks
from supervisor.worker.parts import Parts
from supervisor.worker.process.exit_request import SHORT, ExitRequest
from supervisor.worker.process.start_over import start_over
from supervisor.worker.recording.changed_in_place import mapped_files
from supervisor.worker.replay.fast_forward import FastForward
from supervisor.worker.replay.first_step import FirstStep
from supervisor.worker.replay.loading.placeholder_tracker import PlaceholderTracker
from supervisor.worker.replay.silence import Silence
from supervisor.worker.starting_point import ResumePoint

FIRST_STEP = "first_step"


class Resumption:
    """Brings a new process to where a checkpoint was made; does nothing without one.

    Args:
        parts: of the worker.
        training_goes_on: called when the state has been put back: the monitor answers from then on.

    Attributes:
        silence: keeps the replay from saying again what was said.
        guard: of a replay that may leave out loading; None otherwise.
    """

    def __init__(self, parts: Parts, training_goes_on: Callable[[], None]) -> None:
        self.silence = Silence()
        self._parts = parts
        self._training_goes_on = training_goes_on
        self._start = parts.start
        self.has_arrived = parts.start is None
        self._announced_at = -1
        self._replay: FastForward | None = None
        self.guard: PlaceholderTracker | None = None

    @property
    def is_pending(self) -> bool:
        """Whether the checkpoint's step has not been reached yet."""
        return self._start is not None

    def announced(self) -> None:
        """`supervisor.announce` was called in the fast-forward."""
        if self._replay is not None:
            self._announced_at = self._replay.steps_done

    @property
    def shortfall(self) -> str:
        """What to tell when the script ends before its fast-forward has arrived; empty after."""
        if self._start is None or self._replay is None:
            return ""
        step, done, why = self._start.checkpoint.step, self._replay.steps_done, ""
        if self._replay.disproof is not None:
            why = f" ({self._replay.disproof})"
        return (
            f"the script ended after {done} fast-forwarded steps, before step {step} of its "
            f"checkpoint{why}: the weights were never put back, and what it saved at its end is "
            "not trained"
        )

    def begin(self) -> TrainingHooks:
        """Returns the moments that answer until the checkpoint's step is reached."""
        assert self._start is not None
        parts, checkpoint = self._parts, self._start.checkpoint
        end = int(checkpoint.meta.get("tape_offset", -1))
        problem = None
        try:
            if not parts.settings.fast_forward.enabled:
                raise ReplayError("fast_forward.enabled is false")
            if parts.order.way == "approximate":
                raise ReplayError("an earlier attempt did not come back by a fast-forward")
            if end < 0:
                raise ReplayError(
                    "the tape does not tell how the script came to this checkpoint: an earlier "
                    "resume was approximate, an update raised, updates are made within a forward, "
                    "or the run has gone another way since"
                )
            reader = TapeReader(parts.rundir.tape(parts.rank), end=end)
        except ReplayError as error:
            reader, problem = TapeReader.empty(), str(error)
        parts.file_sizes.source = reader
        parts.notes_fetches = reader.find_next(EntryKind.BATCH) is not None
        parts.interception.replaying = True
        skips = checkpoint.meta.get("pure_loading", []) if parts.may_skip_loading else []
        if skips and problem is None:
            self.guard = PlaceholderTracker(parts.interception, self._load_all)
        self._replay = FastForward(
            interception=parts.interception,
            registry=parts.registry,
            tape=reader,
            target=checkpoint.step,
            skips=skips,
            guard=self.guard,
            arrive=self._arrive,
            heartbeat=self._heartbeat,
            executes_first_step=parts.order.way == FIRST_STEP,
        )
        self._replay.disproof = problem
        self.silence.begin()
        return self._replay

    def _heartbeat(self) -> None:
        if self._replay is not None:
            self._parts.life.replayed(self._replay.steps_done)

    def hide_files(self) -> None:
        """Called last before the script starts: it finds its folders as it found them first.

        Raises:
            OSError: not all could be moved; those that were are put back.
        """
        replay, start = self._replay, self._start
        if replay is None or start is None:
            return
        interval = int(start.checkpoint.meta.get("script_files", 0))
        if replay.disproof is not None or interval < 1:
            self._parts.script_files.begin_anew()
            return
        try:
            self._parts.replayed_files.hide(interval, start.checkpoint.time)
        except OSError:
            self._parts.set_aside.undo()
            raise

    def _load_all(self, why: str) -> None:
        """A batch that was left out is needed: the fast-forward begins again and loads them all."""
        parts = self._parts
        assert self._replay is not None
        parts.journal.write(
            "state_found",
            found="loading needed",
            step=self._replay.steps_done,
            message=f"{why}: fast-forward begins again, with all batches loaded",
        )
        parts.journal.close()
        self.silence.end()
        start_over()

    def _check_leftovers(self, guard: PlaceholderTracker, saved: dict[str, Any]) -> None:
        registry, frames = self._parts.registry, user_frames()
        held = [place.value for place in places(frames) if place.path in saved]
        if guard.left_over(storages(held) | storages(registry_tensors(registry))):
            self._load_all("the script keeps what it has computed from batches")

    def _arrive(self, steps_done: int, disproof: str | None) -> TrainingHooks:
        """The fast-forward stands at its target, or cannot get there: put the state back.

        Raises:
            WorkerLeaves: that failed. The process must end: the weights are not those of the
                checkpoint, and no script may go on with them by catching what we raise.
        """
        try:
            return self._put_back_and_go_on(steps_done, disproof)
        except Exception as error:
            text = f"the state could not be put back: {type(error).__name__}: {error}"
            self._parts.warn(text)
            raise ExitRequest(SHORT, text) from error

    def _put_back_and_go_on(self, steps_done: int, disproof: str | None) -> TrainingHooks:
        assert self._start is not None
        assert self._replay is not None
        parts = self._parts
        start, self._start = self._start, None
        step = start.checkpoint.step
        reasons = [disproof] if disproof else []
        if parts.order.way == FIRST_STEP:
            reasons.append("the first step was really executed: what hooks keep is as it was then")
        try:
            parts.replayed_files.restore_in_place()
            reasons += self._put_back(start, replayed=disproof is None)
            if self._replay.compiled_updates:
                forget_compiled()
            held = start.state.get("held", {})
            mapped = mapped_files(p.value for p in places(user_frames()) if p.path in held)
            files = parts.replayed_files.end(f"attempt_{parts.attempt}", mapped)
            if files.later:
                parts.journal.write("state_found", **files.event(step))
            reasons += files.problems
        finally:
            self.silence.end()
            parts.interception.replaying = False
            self._training_goes_on()
        parts.tape_is_whole = disproof is None
        parts.ring.discard_after(step)
        parts.ordered.be_careful()
        parts.monitor.continue_at(step, self._replay.clock)
        probe = parts.monitor.probe
        loss = start.checkpoint.meta.get("loss_under_way")
        self._replay.hand_over(probe, None if loss is None else float(loss))
        probe.announced = self._announced_at == step
        parts.boundary.continue_at(step, set(start.state.get("held", {})))
        is_whole = probe.loss_seen or not probe.backward_calls
        went_on_otherwise = start.checkpoint.abandoned
        if is_whole and not (reasons or parts.order.fp32 or went_on_otherwise):
            self._expect_the_same_loss(start.checkpoint)
        parts.journal.write(
            "resumed",
            step=step,
            from_step=step,
            exactness="approximate" if reasons else "exact",
            reason="; ".join(reasons) or "every replayed step equals the recorded one",
            order=parts.order.reason,
            replayed_steps=steps_done,
            batches_left_out=self.guard.handed_out if self.guard is not None else 0,
        )
        self._replay = None
        self.has_arrived = True
        return parts.monitor

    def _put_back(self, start: ResumePoint, *, replayed: bool) -> list[str]:
        """Restores state, variables and our own memory; returns what is not as it was.

        Raises:
            CheckpointError: the state does not fit the model.
        """
        parts = self._parts
        frames = user_frames()
        problems: list[str] = []
        if not replayed:
            for module in modules_in(frames):
                if _is_saved(module, start.state["models"]):
                    parts.registry.add_model(module)
        meta = start.checkpoint.meta
        if meta["controls"]["fp32"] or parts.order.fp32:
            # Before the state: a model that is half precision itself would lose digits of it.
            parts.ordered.fp32(start.checkpoint.step)
        parts.state.restore(start.state)
        problems += self._verify(start.state)
        if replayed:
            if meta.get("hook_state", "") != hook_state(parts.registry.models.values()):
                problems.append("what hooks of modules and gradients keep is not as it was")
            problems += parts.held.put_back(frames, start.state.get("held", {}))
        if self.guard is not None:
            if replayed:
                self._check_leftovers(self.guard, start.state.get("held", {}))
            self.guard.end()
        parts.controls.load_state_dict(meta["controls"])
        parts.ordered.activation_checkpointing(
            start.checkpoint.step, was_on=parts.controls.checkpoint_activations
        )
        with parts.barrier("memory of the pipeline"):  # without it the windows begin anew
            remembered = read_pipeline(start.checkpoint.path)
            if remembered is not None:
                parts.pipeline.load_state_dict(remembered)
        problems += meta.get("held_left_out", [])
        return problems + list(start.state.get("left_out", []))

    def _verify(self, saved: dict[str, Any]) -> list[str]:
        """Captures what was just restored and compares it with what was saved."""
        parts = self._parts
        if parts.order.fp32:
            return []  # the saved weights were converted on purpose
        live = parts.state.capture(include_grads="grads" in saved)
        both = ALL_PARTS & saved.keys() & live.keys()
        name = first_difference({p: saved[p] for p in both}, {p: live[p] for p in both})
        return [] if name is None else [f"{name} is not as it was saved, after it was put back"]

    def _expect_the_same_loss(self, checkpoint: Checkpoint) -> None:
        row = checkpoint.meta.get("steps_recorded")
        if row is not None:
            parts = self._parts
            recorder = parts.recorder
            parts.boundary.first_step = FirstStep(
                parts.journal, recorder.path, checkpoint.step, int(row), recorder.rows
            )


def _is_saved(module: Module, models: dict[str, Any]) -> bool:
    """Whether a saved model has its parameters: a wrapper around one has others."""
    names = {name for name, _ in Module.named_parameters(module)}
    return any(names <= saved.keys() for saved in models.values())
