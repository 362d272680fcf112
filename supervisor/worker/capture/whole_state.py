"""What a checkpoint holds: the state of the training, and what its manifest needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from supervisor.actions.controls import Controls
from supervisor.storage.steps.flight_recorder import FlightRecorder
from supervisor.storage.steps.tape import TAPE_FORMAT, TapeWriter
from supervisor.training_state.gradients import gradient_places
from supervisor.training_state.owners import find_owners
from supervisor.training_state.registry import Registry
from supervisor.training_state.sharding.layouts import layouts, transient_buffers
from supervisor.training_state.state import TrainingState
from supervisor.worker.capture.script_census import ScriptCensus
from supervisor.worker.capture.user_tensors import UserTensors
from supervisor.worker.ground.autocast_context import CASTS_STAY
from supervisor.worker.ground.graphs_across import GRAPHS_ACROSS, KEPT_GRAPHS
from supervisor.worker.ground.loop_count import IS_COUNTED, SPLITS_DATA, UPDATES
from supervisor.worker.ground.progress import Progress
from supervisor.worker.ground.run_health import RunHealth
from supervisor.worker.ground.run_warnings import RunWarnings
from supervisor.worker.ground.user_frames import call_under_way, user_frames
from supervisor.worker.group.common_beginning import BEGAN
from supervisor.worker.group.exchanges import EXCHANGED, Exchanges
from supervisor.worker.outside_draws.outside_draws import META, OUTSIDE
from supervisor.worker.recording.loading.loading_proofs import LoadingProofs
from supervisor.worker.recording.replayed_files import ReplayedFiles


class WholeState:
    """Gathers it at a boundary, behind the judgement of every step before; live, not copied."""

    def __init__(
        self,
        *,
        state: TrainingState,
        held: UserTensors,
        census: ScriptCensus,
        registry: Registry,
        controls: Controls,
        tape: TapeWriter,
        loading: LoadingProofs,
        files: ReplayedFiles,
        recorder: FlightRecorder,
        progress: Progress,
        health: RunHealth,
        exchanges: Exchanges,
        warn: RunWarnings,
    ) -> None:
        self._state = state
        self._held = held
        self._census = census
        self._registry = registry
        self._controls = controls
        self._tape = tape
        self._loading = loading
        self._files = files
        self._recorder = recorder
        self._progress = progress
        self._health = health
        self._exchanges = exchanges
        self._warn = warn
        self._told_of_casts = False

    def take(self, *, for_later: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the state and the manifest's part of it.

        Args:
            for_later: it may never be written: its place on the tape is marked, no more, and its
                census counts as nobody's but the caller's.
        """
        progress = self._progress
        frames, call = user_frames(), call_under_way()
        held = self._held.find(frames, call)
        state = self._state.capture(
            held=held, include_grads=progress.grads_matter or not _is_training(call)
        )
        state["written"] = self._files.written.checksums()
        state["whole_files"] = self._files.whole.present()
        state["folder_times"] = self._files.folder_times()
        state["told_states"] = self._loading.told_states()
        state["gradient_places"] = gradient_places(self._registry)
        state["owners"] = find_owners(self._registry, frames)
        state["layouts"] = layouts(self._registry, held)
        state["transient"] = transient_buffers(self._registry)
        census = self._census.packed(frames, is_paid=for_later)
        if census is not None:
            state["census"] = census
        result = progress.update_result
        is_tensor = type(result) is torch.Tensor and result.layout is torch.strided
        if is_tensor or isinstance(result, (bool, int, float, str)):
            state["update_result"] = result.detach().clone() if is_tensor else result
        meta = {
            "update_result_lost": result is not None and "update_result" not in state,
            "tape_offset": self._tape_offset(for_later=for_later),
            "tape_format": TAPE_FORMAT,
            "tape_lost": progress.tape_lost,
            "at_update": progress.at_update,
            "step_is_begun": progress.step_is_begun,
            "older_casts": self._older_casts(),
            UPDATES: progress.steps_done + progress.loop_shift,
            SPLITS_DATA: self._registry.splits_data,
            IS_COUNTED: progress.is_counted,
            "pure_loading": self._loading.left_out(),
            "steps_recorded": self._recorder.rows,
            "controls": self._controls.state_dict(),
            "loss_under_way": progress.probe.loss if progress.probe.loss_seen else None,
            "held_left_out": self._held.left_out,
            GRAPHS_ACROSS: progress.graphs.seen,
            KEPT_GRAPHS: progress.graphs.kept(held, progress.steps_done),
            "risk": self._health.risk,
            EXCHANGED: self._exchanges.balance(),
            META: OUTSIDE.mark(),
            BEGAN: None if (began := self._exchanges.began) is None else began.as_meta(),
        }
        return state, meta

    def _older_casts(self) -> bool:
        progress = self._progress
        before = progress.position - progress.at_update  # a step may end within its own context
        found = progress.autocast.has_older_casts(before)
        if found and not self._told_of_casts:
            self._told_of_casts = True
            self._warn(CASTS_STAY, aloud=True)
        return found

    def puts_off(self) -> bool:
        """Whether the script keeps graphs across updates here, and will soon have none to keep."""
        graphs, steps = self._progress.graphs, self._progress.steps_done
        if not graphs.seen:
            return False
        return graphs.puts_off(self._held.find(user_frames(), call_under_way()), steps)

    def _tape_offset(self, *, for_later: bool) -> int:
        """Length of the tape; -1 when it does not tell how the script came here."""
        if for_later:
            self._tape.mark()
            offset = self._tape.offset
        else:
            offset = self._tape.write_out()
        return offset if self._progress.tape_is_whole and not self._tape.is_full else -1


def _is_training(call: Mapping[str, Any]) -> bool:
    """Whether the next thing that the script does with gradients is to clear them or add to them.
    Behind an update, and in an evaluation, it may first look at those that it has."""
    return bool(call) and torch.is_grad_enabled() and call["module"].training
