"""Starting from a checkpoint: the fast-forward to it, and what is put back there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from supervisor.actions.controls import Ramp
from supervisor.errors import CheckpointError, ReplayError
from supervisor.storage.checkpoints import Checkpoint
from supervisor.storage.tape import TapeReader
from supervisor.training_state.codec import read_state
from supervisor.worker.fast_forward import FastForward
from supervisor.worker.moments import Moments
from supervisor.worker.silence import Silence
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
    """

    def __init__(self, session: Session) -> None:
        self.silence = Silence()
        self._session = session
        self._start = self._load()
        self._replay: FastForward | None = None

    @property
    def is_pending(self) -> bool:
        """Whether the checkpoint's step has not been reached yet."""
        return self._start is not None

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
                return Start(checkpoint=checkpoint, state=read_state(checkpoint.path))
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
        session.switch.replaying = True
        self._replay = FastForward(
            switch=session.switch,
            registry=session.registry,
            tape=reader,
            target=checkpoint.step,
            arrive=self._arrive,
        )
        self._replay.disproof = problem
        self.silence.begin()
        return self._replay

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
        self._be_careful()
        session.monitor.continue_at(step, self._replay.clock)
        session.monitor.probe.signature = self._replay.batch_signature
        session.boundary.continue_at(step, set(start.state.get("held", {})))
        session.journal.write(
            "resumed",
            step=step,
            from_step=step,
            exactness="approximate" if reasons else "exact",
            reason="; ".join(reasons) or "every replayed step equals the recorded one",
            order=session.order.reason,
            replayed_steps=steps_done,
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
            session.use_fp32(start.checkpoint.step)
        session.state.restore(start.state)
        if replayed:
            problems += session.held.put_back(frames, start.state.get("held", {}))
        session.controls.load_state_dict(meta["controls"])
        with session.shield("memory of the pipeline"):  # without it the windows begin anew
            session.pipeline.load_state_dict(meta["pipeline"])
        problems += meta.get("held_left_out", [])
        return problems + list(start.state.get("left_out", []))

    def _be_careful(self) -> None:
        """After numerical trouble the run goes on carefully for a while (REQUIREMENTS K8)."""
        order, controls = self._session.order, self._session.controls
        if order.lr_factor != 1.0 and order.careful_steps:
            controls.lr_factor = order.lr_factor
            controls.ramp = Ramp(order.lr_factor, 1.0, order.careful_steps)
        controls.fp32 = controls.fp32 or order.fp32
