"""What happens where a replay arrives: the state is put back and the live run goes on."""

from __future__ import annotations

from supervisor.codes import Exactness
from supervisor.events.state_events import Resumed, WarningEvent
from supervisor.storage.checkpoints.checkpoints import CheckpointRing
from supervisor.storage.run.healing_memory import takes_dead_ranks_place
from supervisor.worker.checkpoints.starting_point import ResumePoint
from supervisor.worker.core.call_state import forget_compiled
from supervisor.worker.core.graphs_across import GRAPHS_ACROSS
from supervisor.worker.core.part import Arrived
from supervisor.worker.core.parts import Parts
from supervisor.worker.core.worker_context import WorkerContext
from supervisor.worker.files.attempt_files import wait_for_executors
from supervisor.worker.live import Live
from supervisor.worker.outside_draws.outside_draws import OUTSIDE
from supervisor.worker.ranks.rank_context import RankContext
from supervisor.worker.replay import Replay
from supervisor.worker.script_state.start_probe import blind_looks
from supervisor.worker.state_restorer import StateRestorer

STAND_IN_REACHED = (
    "a backward went through a graph that the script had kept from before the checkpoint: its "
    "gradient is not that of the recorded run"
)


class Arrival:
    """Called once, in the order of the methods; any error of them ends the process."""

    def __init__(
        self,
        context: WorkerContext,
        ranks: RankContext,
        restorer: StateRestorer,
        parts: Parts,
        ring: CheckpointRing,
        live: Live,
    ) -> None:
        self.order, self.progress, self.journal = context.order, context.progress, context.journal
        self.ranks = ranks
        self.restorer = restorer
        self.parts = parts
        self.ring = ring
        self.live = live

    def put_state_back(self, start: ResumePoint, replay: Replay) -> list[str]:
        """Puts state and variables back; returns why the resume is not exact.

        Raises:
            CheckpointError: the state does not fit the model.
            OSError: a file that is mapped could not be written.
        """
        restorer, count = self.restorer, replay.count
        busy = wait_for_executors()
        self.parts.before_state()
        replay.take_gradients_back()
        if start.gathered is None:
            reasons = restorer.put_back(start, replayed=replay.mismatch is None)
        else:
            splits = restorer.splits_data
            reasons = restorer.reshard(
                start,
                start.gathered,
                rank=self.ranks.place.rank,
                keeps_schedules=count is not None and count.is_scaled(splits_data=splits),
            )
        still = [f"thread {name} still worked, and may write files" for name in busy]
        return self._why(replay) + reasons + still + list(blind_looks())

    def put_rest_back(self, start: ResumePoint, replay: Replay) -> tuple[Arrived, list[str]]:
        """The same for what each part knows itself, and for the script's files.

        Raises:
            OSError: files could not be put back.
        """
        if replay.compiles_anew:
            forget_compiled()
        checkpoint = start.checkpoint
        arrived = Arrived(
            step=checkpoint.step,
            path=checkpoint.path,
            state=start.state,
            meta=checkpoint.meta,
            texts=self.restorer.compared.texts,
        )
        return arrived, self.parts.after_state(arrived)

    def go_on(
        self,
        start: ResumePoint,
        replay: Replay,
        arrived: Arrived,
        reasons: list[str],
        *,
        announced_at: int,
        batches_left_out: int,
        replayed_step_s: float | None,
    ) -> None:
        """Hands over to the live run, which answers already.

        Args:
            start: the checkpoint and its state.
            replay: that has arrived.
            arrived: the same for the parts.
            reasons: why the resume is not exact; empty if it is.
            announced_at: the last step of the replay at which the script announced a change.
            batches_left_out: whose loading the replay left out.
            replayed_step_s: what a step of the replay took.
        """
        step, meta, progress, order = arrived.step, arrived.meta, self.progress, self.order
        reasons = [*reasons, *OUTSIDE.arrived(may_leave_out=batches_left_out > 0)]
        reasons = self.ranks.agreement.arrived(step, reasons, done=replay.steps_done)
        progress.can_replay = replay.mismatch is None
        progress.is_counted = replay.count is not None
        progress.loop_shift = replay.steps_done - step
        progress.graphs.arrived(seen=bool(meta.get(GRAPHS_ACROSS)))
        replay.watch_stand_ins(self._stand_in_reached)
        if self.ranks.place.is_first_rank and not takes_dead_ranks_place():
            self.ring.discard_after(step)
        self.live.continue_at(step, replay.clock, replay.random.region)
        probe, loss = progress.probe, meta.get("loss_under_way")
        replay.hand_over(probe, None if loss is None else float(loss))
        probe.announced = announced_at == step
        is_changed = order.fp32 or start.checkpoint.abandoned or "steps_recorded" not in meta
        arrived.is_exact = not (reasons or is_changed)
        arrived.is_whole = probe.loss_seen or not probe.backward_calls
        arrived.said = Resumed(
            step=step,
            from_step=step,
            exactness=Exactness.APPROXIMATE if reasons else Exactness.EXACT,
            reason="; ".join(reasons) or "every replayed step equals the recorded one",
            order=order.reason,
            replayed_steps=replay.steps_done,
            batches_left_out=batches_left_out,
            compared=self.restorer.compared.as_event(),
            replayed_step_s=replayed_step_s,
        )
        self.journal.write(arrived.said)
        self.parts.goes_live(arrived)

    def _why(self, replay: Replay) -> list[str]:
        """Why what was replayed is not the recorded run."""
        if replay.count is not None:
            return [replay.count.words(splits_data=self.restorer.splits_data)]
        return [replay.mismatch] if replay.mismatch else []

    def _stand_in_reached(self) -> None:
        """A backward of the live run has come to what the replay put out."""
        progress = self.progress
        if not progress.graphs.seen or progress.can_replay:
            self.journal.write(
                WarningEvent(step=progress.steps_done, message=STAND_IN_REACHED, aloud=True)
            )
        progress.graphs.seen = True
        progress.lose_replay(STAND_IN_REACHED)
