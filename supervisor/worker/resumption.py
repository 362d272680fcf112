"""Starting from a checkpoint: the fast-forward to it, and what is put back there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from supervisor.actions.controls import Ramp
from supervisor.errors import CheckpointDamaged, CheckpointError, ReplayError
from supervisor.storage.checkpoints import Checkpoint
from supervisor.storage.tape import EntryKind, TapeReader
from supervisor.training_state.codec import read_state
from supervisor.training_state.comparison import first_difference
from supervisor.training_state.held_values import storages
from supervisor.training_state.state import ALL_PARTS, digest
from supervisor.training_state.variables import places
from supervisor.worker.fast_forward import FastForward
from supervisor.worker.first_step import FirstStep
from supervisor.worker.held import registry_tensors
from supervisor.worker.moments import Moments
from supervisor.worker.silence import Silence
from supervisor.worker.stand_in_guard import StandInGuard
from supervisor.worker.start_over import start_over
from supervisor.worker.user_frames import modules_in, user_frames

if TYPE_CHECKING:
    from supervisor.worker.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where this attempt begins: a checkpoint with its state."""

    checkpoint: Checkpoint
    state: dict[str, Any]


class Resumption:
    """Brings a new process to where a checkpoint was made; does nothing without one.

    Attributes:
        silence: keeps the replay from saying again what was said.
        guard: of a replay that may leave out loading; None otherwise.
    """

    def __init__(self, session: Session) -> None:
        self.silence = Silence()
        self._session = session
        self._start = self._load()
        self._replay: FastForward | None = None
        self.guard: StandInGuard | None = None

    @property
    def is_pending(self) -> bool:
        """Whether the checkpoint's step has not been reached yet."""
        return self._start is not None

    @property
    def steps_replayed(self) -> int:
        """How many steps the fast-forward has behind it; -1 without one."""
        return -1 if self._replay is None else self._replay.steps_done

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
            "not trained: give it the arguments it had, or a new run directory"
        )

    @property
    def tape_offset(self) -> int:
        """How much of the tape belongs to the checkpoint; 0 without one."""
        if self._start is None:
            return 0
        return max(0, int(self._start.checkpoint.meta.get("tape_offset", 0)))

    def _load(self) -> Start | None:
        session = self._session
        step = session.order.checkpoint_step
        if step is None:
            return None
        found = session.ring.checkpoints()
        wanted = [c for c in found if c.step == step]
        older = [c for c in found if c.step < step]
        for checkpoint in [*wanted, *reversed(older)]:
            try:
                session.ring.verify(checkpoint)
                start = Start(checkpoint=checkpoint, state=read_state(checkpoint.path))
                check_digest(start)
                return start
            except CheckpointError as error:
                session.journal.write(
                    "checkpoint_rejected", step=checkpoint.step, reason=str(error)
                )
        session.journal.write(
            "warning", message="no checkpoint can be loaded: starting from nothing"
        )
        return None

    def begin(self) -> Moments:
        """Returns the moments that answer until the checkpoint's step is reached."""
        assert self._start is not None
        session, checkpoint = self._session, self._start.checkpoint
        end = int(checkpoint.meta.get("tape_offset", -1))
        problem = None
        try:
            if not session.settings.fast_forward.enabled:
                raise ReplayError("fast_forward.enabled is false")
            if end < 0:
                raise ReplayError(
                    "the tape does not tell how the script came to this checkpoint: an earlier "
                    "resume was approximate, or an update raised"
                )
            reader = TapeReader(session.rundir.tape(session.rank), end=end)
        except ReplayError as error:
            reader, problem = TapeReader.empty(), str(error)
        session.file_sizes.source = reader
        session.notes_fetches = reader.find_next(EntryKind.BATCH) is not None
        session.switch.replaying = True
        skips = checkpoint.meta.get("pure_loading", []) if session.may_skip_loading else []
        if skips and problem is None:
            self.guard = StandInGuard(session.switch, self._load_all)
        self._replay = FastForward(
            switch=session.switch,
            registry=session.registry,
            tape=reader,
            target=checkpoint.step,
            skips=skips,
            guard=self.guard,
            arrive=self._arrive,
        )
        self._replay.disproof = problem
        self.silence.begin()
        return self._replay

    def _load_all(self, why: str) -> None:
        """A batch that was left out is needed: the fast-forward begins again and loads them all."""
        session = self._session
        assert self._replay is not None
        session.journal.write(
            "state_found",
            found="loading needed",
            step=self._replay.steps_done,
            message=f"{why}: fast-forward begins again, with all batches loaded",
        )
        session.journal.close()
        self.silence.end()
        start_over()

    def _check_leftovers(self, guard: StandInGuard, saved: dict[str, Any]) -> None:
        registry, frames = self._session.registry, user_frames()
        held = [place.value for place in places(frames) if place.path in saved]
        if guard.left_over(storages(held) | storages(registry_tensors(registry))):
            self._load_all("the script keeps what it has computed from batches")

    def _arrive(self, steps_done: int, disproof: str | None) -> Moments:
        """The fast-forward stands at its target, or cannot get there: put the state back."""
        assert self._start is not None
        assert self._replay is not None
        session = self._session
        start, self._start = self._start, None
        step = start.checkpoint.step
        reasons = [disproof] if disproof else []
        try:
            reasons += self._put_back(start, replayed=disproof is None)
        finally:
            self.silence.end()
            session.switch.replaying = False
            session.moments = session.monitor
        session.tape_is_whole = disproof is None
        session.ring.discard_after(step)
        self.be_careful()
        session.monitor.continue_at(step, self._replay.clock)
        probe = session.monitor.probe
        self._replay.hand_over(probe)
        probe.announced = session.announced_in_replay == step
        session.boundary.continue_at(step, set(start.state.get("held", {})))
        if not (reasons or session.order.fp32 or probe.backward_calls):  # its loss has begun
            self._expect_the_same_loss(start.checkpoint)
        session.journal.write(
            "resumed",
            step=step,
            from_step=step,
            exactness="approximate" if reasons else "exact",
            reason="; ".join(reasons) or "every replayed step equals the recorded one",
            order=session.order.reason,
            replayed_steps=steps_done,
            batches_left_out=self.guard.handed_out if self.guard is not None else 0,
        )
        self._replay = None
        return session.monitor

    def _put_back(self, start: Start, *, replayed: bool) -> list[str]:
        """Restores state, variables and our own memory; returns what is not as it was.

        Raises:
            CheckpointError: the state does not fit the model. The process must end: going on with
                untrained weights would be worse than any crash.
        """
        session = self._session
        frames = user_frames()
        problems: list[str] = []
        if not replayed:
            for module in modules_in(frames):
                session.registry.add_model(module)
        meta = start.checkpoint.meta
        if meta["controls"]["fp32"] or session.order.fp32:
            # Before the state: a model that is half precision itself would lose digits of it.
            session.ordered.fp32(start.checkpoint.step)
        session.state.restore(start.state)
        problems += self._verify(start.state)
        if replayed:
            problems += session.held.put_back(frames, start.state.get("held", {}))
        if self.guard is not None:
            if replayed:
                self._check_leftovers(self.guard, start.state.get("held", {}))
            self.guard.end()
        session.controls.load_state_dict(meta["controls"])
        session.ordered.activation_checkpointing(
            start.checkpoint.step, was_on=session.controls.checkpoint_activations
        )
        with session.shield("memory of the pipeline"):  # without it the windows begin anew
            session.pipeline.load_state_dict(meta["pipeline"])
        problems += meta.get("held_left_out", [])
        return problems + list(start.state.get("left_out", []))

    def _verify(self, saved: dict[str, Any]) -> list[str]:
        """Captures what was just restored and compares it with what was saved."""
        session = self._session
        if session.order.fp32:
            return []  # the saved weights were converted on purpose
        live = session.state.capture(include_grads="grads" in saved)
        parts = ALL_PARTS & saved.keys() & live.keys()
        name = first_difference({p: saved[p] for p in parts}, {p: live[p] for p in parts})
        return [] if name is None else [f"{name} is not as it was saved, after it was put back"]

    def _expect_the_same_loss(self, checkpoint: Checkpoint) -> None:
        row = checkpoint.meta.get("steps_recorded")
        if row is not None:
            session = self._session
            recorder = session.recorder
            session.boundary.first_step = FirstStep(
                session.journal, recorder.path, checkpoint.step, int(row), recorder.rows
            )

    def be_careful(self) -> None:
        """Takes on the order's conservative settings: K8, and after memory ran out K9.

        Called at the checkpoint's step, or before the first one of a start from nothing.
        """
        order, controls = self._session.order, self._session.controls
        if order.lr_factor != 1.0 and order.careful_steps:
            controls.lr_factor = order.lr_factor
            controls.ramp = Ramp(order.lr_factor, 1.0, order.careful_steps)
        controls.fp32 = controls.fp32 or order.fp32
        controls.batch_factor = min(controls.batch_factor, order.batch_factor)


def check_digest(start: Start) -> None:
    """What was read must be what lay in memory when the checkpoint was made.

    Raises:
        CheckpointDamaged: it changed before it was written, as in a faulty memory.
    """
    stated = start.checkpoint.meta.get("digest")
    if stated is not None and digest(start.state) != stated:
        raise CheckpointDamaged(
            f"{start.checkpoint.path}: its state is not the one that was copied: use an older "
            "checkpoint, and check this machine's memory"
        )
