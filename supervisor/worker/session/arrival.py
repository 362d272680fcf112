"""What happens where a fast-forward arrives: the state is put back and the live run goes on."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass, replace

from supervisor.codes import Exactness
from supervisor.events.state_events import Resumed, WarningEvent
from supervisor.ranks import RankPlace
from supervisor.records import WorkerOrder
from supervisor.storage.checkpoints.checkpoints import CheckpointRing
from supervisor.storage.journal.journal import Journal
from supervisor.training_state.census.reach import Reach
from supervisor.worker.ground.graphs_across import GRAPHS_ACROSS
from supervisor.worker.ground.progress import Progress
from supervisor.worker.ground.user_frames import user_frames
from supervisor.worker.group.agreement import Agreement
from supervisor.worker.interception.outside_dynamo import forget_compiled
from supervisor.worker.live.boundary import Boundary
from supervisor.worker.live.monitor import Monitor
from supervisor.worker.outside_draws.outside_draws import OUTSIDE
from supervisor.worker.recording.attempt_files import AttemptFiles
from supervisor.worker.recording.changed_in_place import mapped_files
from supervisor.worker.replay.fast_forward import FastForward
from supervisor.worker.replay.recorded_steps import RecordedSteps
from supervisor.worker.session.busy_threads import wait_for_executors
from supervisor.worker.session.start_probe import blind_looks
from supervisor.worker.session.starting_point import ResumePoint
from supervisor.worker.session.state_restorer import StateRestorer
from supervisor.worker.treatment.exact_retry import ExactRetry
from supervisor.worker.treatment.ordered_treatments import OrderedTreatments
from supervisor.worker.treatment.trial_step import OlderWeights

NAMED_FILES = 3
STAND_IN_REACHED = (
    "a backward went through a graph that the script had kept from before the checkpoint: its "
    "gradient is not that of the recorded run"
)


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """Called once, in the order of the methods; the live hooks answer again before the last."""

    attempt: int
    place: RankPlace
    order: WorkerOrder
    restorer: StateRestorer
    agreement: Agreement
    files: AttemptFiles
    ring: CheckpointRing
    ordered: OrderedTreatments
    progress: Progress
    monitor: Monitor
    boundary: Boundary
    recorded: RecordedSteps
    retry: ExactRetry
    trial: OlderWeights
    journal: Journal

    def put_back(self, start: ResumePoint, replay: FastForward) -> list[str]:
        """Puts state and variables back; returns why the resume is not exact.

        Raises:
            CheckpointError: the state does not fit the model.
            OSError: a file that is mapped could not be written.
        """
        busy = wait_for_executors()
        self.files.settled.restore_in_place()
        replay.take_gradients_back()
        if start.gathered is None:
            reasons = self.restorer.put_back(start, replayed=replay.disproof is None)
        else:
            is_scaled = replay.count is not None and replay.count.is_scaled(
                splits_data=self.restorer.splits_data
            )
            reasons = self.restorer.share_out(
                start, start.gathered, rank=self.place.rank, keeps_schedules=is_scaled
            )
        still = [f"thread {name} still worked, and may write files" for name in busy]
        return self._why(replay) + reasons + still + list(blind_looks())

    def _why(self, replay: FastForward) -> list[str]:
        """Why what was replayed is not the recorded run."""
        if replay.count is not None:
            return [replay.count.words(splits_data=self.restorer.splits_data)]
        return [replay.disproof] if replay.disproof else []

    def put_rest_back(self, start: ResumePoint, replay: FastForward) -> list[str]:
        """The same for our own memory and the script's files.

        Raises:
            OSError: files could not be put back.
        """
        reasons = self.restorer.remember(start)
        if replay.compiles_anew:
            forget_compiled()
        held = start.state.get("held", {})
        reached = list(Reach(user_frames()))
        mapped = mapped_files(
            p.value for p in reached if p.path in held or isinstance(p.value, mmap.mmap)
        )
        files_settled = self.files.settled
        names = files_settled.take_names(self.restorer.compared.texts)
        saved = names.keys(start.state.get("written", {}))
        written = self.files.replayed.written
        settled = written.put_back(saved, files_settled.kept_contents())
        files = files_settled.settle(
            f"attempt_{self.attempt}",
            mapped,
            settled,
            start.state.get("whole_files"),
        )
        if self.order.experiment:  # `explain` replays a copy of the run, without this record
            files = replace(files, unknown="")
        if files.later:
            self.journal.write(files.event(start.checkpoint.step))
        others = [] if self.order.experiment else written.differing(saved, settled)
        reasons += [f"{os.path.relpath(path)} is not as it was" for path in others[:NAMED_FILES]]
        return reasons + files.problems

    def go_on(
        self,
        start: ResumePoint,
        replay: FastForward,
        reasons: list[str],
        *,
        announced_at: int,
        batches_left_out: int,
    ) -> None:
        """Hands over to the live run.

        Args:
            start: the checkpoint and its state.
            replay: that has arrived.
            reasons: why the resume is not exact; empty if it is.
            announced_at: the last step of the replay at which the script announced a change.
            batches_left_out: whose loading the replay left out.
        """
        step, meta, progress = start.checkpoint.step, start.checkpoint.meta, self.progress
        reasons = [*reasons, *OUTSIDE.arrived(may_leave_out=batches_left_out > 0)]
        reasons = self.agreement.arrived(step, reasons, done=replay.steps_done)
        self.files.settled.put_back_folder_times(start.state.get("folder_times", {}))
        progress.tape_is_whole = replay.disproof is None
        progress.is_counted = replay.count is not None
        progress.loop_shift = replay.steps_done - step
        progress.graphs.arrived(seen=bool(meta.get(GRAPHS_ACROSS)))
        replay.watch_stand_ins(self._stand_in_reached)
        if self.place.leads:
            self.ring.discard_after(step)
        self.ordered.be_careful()
        self.monitor.continue_at(step, replay.clock, replay.random.region)
        probe, loss = progress.probe, meta.get("loss_under_way")
        replay.hand_over(probe, None if loss is None else float(loss))
        probe.announced = announced_at == step
        self.restorer.begin_variables(start.state)
        self.boundary.continue_at(step)
        row, order = meta.get("steps_recorded"), self.order
        is_same = not (reasons or order.fp32 or start.checkpoint.abandoned or row is None)
        said = Resumed(
            step=step,
            from_step=step,
            exactness=Exactness.APPROXIMATE if reasons else Exactness.EXACT,
            reason="; ".join(reasons) or "every replayed step equals the recorded one",
            order=order.reason,
            replayed_steps=replay.steps_done,
            batches_left_out=batches_left_out,
            compared=self.restorer.compared.as_event(),
        )
        self.journal.write(said)
        if is_same and order.retry_until is None:
            is_whole = probe.loss_seen or not probe.backward_calls
            self.recorded.expect(said, int(row or 0), left_out=0 if is_whole else 1)
        self.trial.resumed(int(row or 0), is_exact=is_same)
        self.retry.resumed(int(row or 0), is_exact=is_same)

    def _stand_in_reached(self) -> None:
        """A backward of the live run has come to what the replay put out."""
        progress = self.progress
        if not progress.graphs.seen or progress.tape_is_whole:
            self.journal.write(
                WarningEvent(step=progress.steps_done, message=STAND_IN_REACHED, aloud=True)
            )
        progress.graphs.seen = True
        progress.tape_is_broken(STAND_IN_REACHED)
