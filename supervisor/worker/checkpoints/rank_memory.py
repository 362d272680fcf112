"""Where a rank's newest states are kept when the rank itself is killed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from supervisor.codes import Found
from supervisor.errors import CheckpointError
from supervisor.events.state_events import StateFound
from supervisor.held_memory import BUFFER, HeldMemory, in_words
from supervisor.held_memory import PLACES as HELD
from supervisor.ranks import RankPlace
from supervisor.storage.run.kept_memory import PLACES
from supervisor.training_state.shared_memory_state import SharedMemoryState, read_place
from supervisor.training_state.snapshot import state_bytes
from supervisor.worker.checkpoints.checkpoint_writer import CapturedCheckpoint
from supervisor.worker.core.worker_context import WorkerContext

KEPT_INTERVAL = "script_files"
KEPT_BEGAN = "script_files_began"
"""Of a kept state's meta: what `ScriptFiles.expect_interval` returned."""


class RankMemory:
    """Takes the places of `KeptMemory` in turn.

    Args:
        paths: of this rank's places; the parent has given them.
        place: of this rank.
        memory: in which there must be room for them.

    Attributes:
        on_kept: called with the number of a place and its step when a state is whole there.
        on_forgotten: called when no place holds one any more.
    """

    def __init__(self, paths: Sequence[str], place: RankPlace, memory: HeldMemory) -> None:
        self._paths = tuple(paths)
        self._place = place
        self._memory = memory
        self._places: list[SharedMemoryState] = []
        self._turn = 0
        self.on_kept: Callable[[int, int], None] = lambda place, step: None
        self.on_forgotten: Callable[[], None] = lambda: None

    def keep(self, captured: CapturedCheckpoint) -> None:
        """Copies a state, its tensors live, in the place of the one before the last.

        Raises:
            CheckpointError: there is no memory for it, and there will be none later.
        """
        try:
            self._check_room(captured.state)
            if not self._places:
                self._places = [SharedMemoryState(path) for path in self._paths]
            self._turn = (self._turn + 1) % PLACES
            self._places[self._turn].put(captured.step, self._content(captured))
            self.on_kept(self._turn, captured.step)
        except OSError as error:
            raise CheckpointError(f"memory beside the process: {error}") from error

    def forget(self) -> None:
        """There is nothing in any place any more."""
        self.on_forgotten()
        for place in self._places:
            place.forget()

    def _check_room(self, state: Mapping[str, Any]) -> None:
        size, memory = state_bytes(state), self._memory
        if memory.allows(HELD, size, PLACES):
            return memory.holds(HELD, size, PLACES)
        self.on_forgotten()
        for place in self._places:
            place.empty()
        self._places = []
        memory.leaves_out(HELD)
        memory.holds(HELD, 0, 0)
        raise CheckpointError(
            f"it would take {in_words(PLACES * size)}, and {in_words(memory.free())} are free"
        )

    def _content(self, captured: CapturedCheckpoint) -> dict[str, Any]:
        return {
            "rank": self._place.rank,
            "world_size": self._place.world_size,
            "state": captured.state,
            "meta": dict(captured.meta),
            "reason": captured.reason,
            "sections": dict(captured.sections),
        }


def kept_at(paths: Sequence[str], step: int) -> tuple[RankPlace, CapturedCheckpoint] | None:
    """Returns what a rank has kept at `step`, and which rank that was; None if it is not there.

    Args:
        paths: of the rank's places.
        step: at whose boundary.

    Raises:
        CheckpointError: what is there has changed, or cannot be read.
    """
    try:
        found = [place for place in map(read_place, paths) if place is not None]
    except OSError as error:
        raise CheckpointError(f"memory beside the process: {error}") from error
    for kept_step, content in found:
        if kept_step == step:
            captured = CapturedCheckpoint(
                step=step,
                state=content["state"],
                meta=content["meta"],
                reason=content["reason"],
                sections=content["sections"],
            )
            return RankPlace(rank=content["rank"], world_size=content["world_size"]), captured
    return None


def held_memory(context: WorkerContext, kept: Sequence[str]) -> HeldMemory:
    """Returns what copies of this worker's state are counted in.

    Args:
        kept: paths of this rank's places, for which there is room first.
    """
    warn, progress = context.warn, context.progress

    def tell(copies: int) -> None:
        warn.write(StateFound(step=progress.steps_done, found=Found.COPIES_HELD, count=copies))

    return HeldMemory(
        context.settings.snapshot,
        most=context.order.most_copies,
        first={BUFFER: 1, **({HELD: PLACES} if kept else {})},
        ranks=context.place.local_world_size,
        tell=tell,
    )
