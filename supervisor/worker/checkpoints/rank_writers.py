"""Saving by several ranks."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from supervisor.errors import CheckpointError, StateNotFinite
from supervisor.ranks import FIRST_RANK, RankPlace
from supervisor.storage.checkpoints.checkpoints import Checkpoint, CheckpointRing
from supervisor.storage.checkpoints.manifest import FileSum
from supervisor.storage.checkpoints.parts import (
    RANKS,
    REFUSED,
    call_all_off,
    call_off,
    is_all_called_off,
    is_called_off,
    part_of,
    part_path,
    publish_part,
    rank_folder,
    read_part,
    refusal_of,
    remove_parts,
    take_part,
)
from supervisor.storage.files import file_system as aside
from supervisor.storage.files.private_files import make_private, told_refusals
from supervisor.training_state.replicas import (
    Split,
    diverged,
    parameters_alike,
    shared_paths,
    splits,
    tensor_digests,
    without_replicated,
)
from supervisor.training_state.sharding.gathered import read_rank_state
from supervisor.training_state.snapshot import state_bytes
from supervisor.worker.checkpoints.checkpoint_writer import (
    CapturedCheckpoint,
    CheckpointWriter,
    SingleWriter,
    fill,
    make_durable,
    streamed,
    with_digest,
)
from supervisor.worker.checkpoints.split_replicas import SplitReplicas
from supervisor.worker.core.worker_context import WorkerContext
from supervisor.worker.ranks.exchanges import check_same_place

TIMEOUT_S = 600.0
"""For the slowest rank to write its part. A rank that has died ends the attempt long before."""
POLL_S = 0.005
DIVERGED = "diverged"
"""In a part's meta: path → digest of replicas that differ from the first rank's."""
DIGESTS = "digests.json"
"""In the folder of the first rank's part: of its tensors."""


class FirstRankWriter(SingleWriter):
    """Waits for the parts of all other ranks and publishes them with its own.

    If one rank's state is not finite, or cannot be written, nothing is published.
    """

    def __init__(
        self,
        ring: CheckpointRing,
        before_publishing: Callable[[], None],
        *,
        place: RankPlace,
        attempt: int,
        on_split: Callable[[int, list[Split]], None] = lambda step, found: None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """`on_split`: called with the step and the replicas that have come to differ, before
        anything is published; may raise `CheckpointError` to prevent that."""
        super().__init__(ring, before_publishing)
        self._on_split = on_split
        self._place = place
        self._attempt = attempt
        self._timeout_s = timeout_s
        self._saves = 0

    def write(self, captured: CapturedCheckpoint) -> Checkpoint:
        step, disk = captured.step, self._ring.disk
        own, is_saved = self._part(step, self._place.rank), False
        self._saves += 1
        try:
            self._tell_digests(captured)
            kept = self._join(captured)
            is_saved = True
            return kept
        finally:  # the others wait until their parts are gone
            remove_parts(
                disk,
                self._ring.folder,
                lambda number, attempt: number <= step or attempt < self._attempt,
            )
            if not is_saved:
                call_off(disk, own, self._saves)

    def _join(self, captured: CapturedCheckpoint) -> Checkpoint:
        step, others = captured.step, range(1, self._place.world_size)
        parts = {rank: self._await(step, rank) for rank in others}
        meta = with_digest(captured)
        for rank, part in parts.items():
            if refusal_of(part):
                raise StateNotFinite(f"rank {rank}: {refusal_of(part)}")
        check_same_place({self._place.rank: meta, **{r: part.meta for r, part in parts.items()}})
        told = ((rank, part.meta.get(DIVERGED, {})) for rank, part in parts.items())
        found = splits(told, self._place.world_size)
        if found:
            self._on_split(step, found)
        make_durable(self._before_publishing)
        return self._ring.save(
            step,
            lambda folder: self._fill(folder, captured, parts),
            reason=captured.reason,
            meta={**meta, RANKS: {str(rank): part.meta for rank, part in parts.items()}},
            estimated_bytes=0 if captured.file else state_bytes(captured.state),
            abandoned=captured.abandoned,
        )

    def _part(self, step: int, rank: int) -> Path:
        return part_path(self._ring.folder, step, self._attempt, rank)

    def stream(self, captured: CapturedCheckpoint) -> CapturedCheckpoint:
        try:
            return super().stream(captured)
        except CheckpointError:
            self._saves += 1
            call_off(self._ring.disk, self._part(captured.step, self._place.rank), self._saves)
            raise

    def saves_no_more(self) -> None:
        call_all_off(self._ring.disk, self._ring.folder, self._attempt, self._place.rank)

    def read(self, step: int) -> dict[str, Any]:
        return read_rank_state(self._ring.get(step), self._place)

    def _fill(
        self, folder: Path, captured: CapturedCheckpoint, parts: Mapping[int, Checkpoint]
    ) -> dict[str, FileSum]:
        own = folder / rank_folder(self._place.rank)
        self._ring.disk.make_folder(own)
        fill(own, captured)
        known: dict[str, FileSum] = {}
        for rank, part in parts.items():
            known.update(take_part(self._ring.disk, part, folder / rank_folder(rank)))
        return known

    def _tell_digests(self, captured: CapturedCheckpoint) -> None:
        """Says what need not be in the others' parts, because it is in this one's."""
        disk, step = self._ring.disk, captured.step
        staged = aside.aside_path(self._ring.folder, aside.STAGED, step)
        target = self._part(step, self._place.rank)
        with told_refusals(self._ring.folder):
            if not self._ring.folder.is_dir():
                make_private(self._ring.folder)
            disk.make_folder(staged)
            try:
                disk.write(staged / DIGESTS, json.dumps(tensor_digests(captured.state)).encode())
                with contextlib.suppress(OSError):
                    disk.remove_tree(target)
                disk.replace(staged, target)
            except OSError:
                with contextlib.suppress(OSError):
                    disk.remove_tree(staged)
                raise

    def _await(self, step: int, rank: int) -> Checkpoint:
        path = self._part(step, rank)
        deadline = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline:
            if is_called_off(path, self._saves):
                raise CheckpointError(f"checkpoint of step {step}: rank {rank} could not write it")
            if is_all_called_off(self._ring.folder, self._attempt, rank):
                raise CheckpointError(
                    f"checkpoint of step {step}: rank {rank} saves nothing any more"
                )
            with told_refusals(path):
                part = read_part(self._ring.disk, path, step)
            if part is not None:
                return part
            time.sleep(POLL_S)
        raise CheckpointError(
            f"checkpoint of step {step}: rank {rank} has not written its part within "
            f"{self._timeout_s:.0f} s"
        )


TELLS_WITHIN_S = 60.0
"""For the first rank to say what it saves; behind that, this rank saves all of its own."""


class OtherRankWriter(CheckpointWriter):
    """Writes this rank's part and waits until the first rank has published it, or has not.

    Only the first rank marks, spoils and removes checkpoints.
    """

    def __init__(
        self,
        ring: CheckpointRing,
        before_publishing: Callable[[], None],
        *,
        place: RankPlace,
        attempt: int,
        alike: Callable[[], Collection[str]] = frozenset,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """`alike`: see `parameters_alike`."""
        self._ring = ring
        self._alike = alike
        self._shared: Collection[str] = ()
        self._before_publishing = before_publishing
        self._place = place
        self._attempt = attempt
        self._timeout_s = timeout_s
        self._saves = 0

    def write(self, captured: CapturedCheckpoint) -> Checkpoint:
        own = self._part(captured.step, self._place.rank)
        self._saves += 1
        try:
            self._hand_over(captured)
        except Exception:
            call_off(self._ring.disk, own, self._saves)
            raise
        return part_of(self._ring.get(captured.step), self._place.rank, self._place.world_size)

    def _hand_over(self, captured: CapturedCheckpoint) -> None:
        try:
            meta = with_digest(captured)
            make_durable(self._before_publishing)
        except CheckpointError as error:
            self._publish(captured, {REFUSED: str(error)}, is_empty=True)
            raise
        first = self._first_digests(captured.step)
        meta |= self._compared(captured, first)
        own = without_replicated(captured.state, first)
        self._publish(dataclasses.replace(captured, state=own, file=None), meta)

    def _part(self, step: int, rank: int) -> Path:
        return part_path(self._ring.folder, step, self._attempt, rank)

    def _heed_the_first(self, step: int) -> None:
        """Raises CheckpointError if the first rank does not save this step."""
        if is_called_off(self._part(step, FIRST_RANK), self._saves):
            raise CheckpointError(f"checkpoint of step {step}: the first rank could not save it")
        if is_all_called_off(self._ring.folder, self._attempt, FIRST_RANK):
            raise CheckpointError(
                f"checkpoint of step {step}: the first rank saves nothing any more"
            )

    def stream(self, captured: CapturedCheckpoint) -> CapturedCheckpoint:
        try:
            return streamed(captured, self._ring.aside(captured.step))
        except CheckpointError:
            self._saves += 1
            call_off(self._ring.disk, self._part(captured.step, self._place.rank), self._saves)
            raise

    def saves_no_more(self) -> None:
        call_all_off(self._ring.disk, self._ring.folder, self._attempt, self._place.rank)

    def steps(self) -> list[int]:
        return [checkpoint.step for checkpoint in self._ring.checkpoints()]

    def read(self, step: int) -> dict[str, Any]:
        return read_rank_state(self._ring.get(step), self._place)

    def mark_stable(self, step: int) -> None:
        """The first rank reads all parts back."""

    def spoil(self, step: int) -> None:
        """The first rank does."""

    def abandoned_steps(self) -> set[int]:
        return {checkpoint.step for checkpoint in self._ring.abandoned()}

    def room_warning(self) -> str | None:
        return None

    def _compared(
        self, captured: CapturedCheckpoint, first: Mapping[str, str]
    ) -> dict[str, Mapping[str, str]]:
        """Returns what to tell the first rank of replicas that have come to differ from its own."""
        own = tensor_digests(captured.state) if first else {}
        found = diverged(self._shared, first, own, self._alike()) if self._shared else {}
        self._shared = shared_paths(first, own)
        return {DIVERGED: found} if found else {}

    def _first_digests(self, step: int) -> Mapping[str, str]:
        """Returns the digests of what the first rank saves; none if it does not tell them."""
        path = self._part(step, FIRST_RANK) / DIGESTS
        deadline = time.monotonic() + min(self._timeout_s, TELLS_WITHIN_S)
        while time.monotonic() < deadline:
            self._heed_the_first(step)
            try:
                found: dict[str, str] = json.loads(path.read_bytes())
                return found
            except FileNotFoundError:
                time.sleep(POLL_S)
            except (OSError, ValueError):
                break
        return {}

    def _publish(
        self, captured: CapturedCheckpoint, meta: dict[str, Any], *, is_empty: bool = False
    ) -> None:
        """Hands this rank's part over, and waits until the first rank has taken it."""
        step, place = captured.step, (self._attempt, self._place.rank)
        planned = Checkpoint(step=step, path=self._part(step, self._place.rank), meta=meta)
        with told_refusals(self._ring.folder):
            part = publish_part(
                self._ring.disk,
                self._ring.folder,
                planned,
                place,
                lambda folder: None if is_empty else fill(folder, captured),
            )
        deadline = time.monotonic() + self._timeout_s
        while part.exists():
            self._heed_the_first(step)
            if time.monotonic() > deadline:
                raise CheckpointError(f"checkpoint of step {step}: the first rank has not taken it")
            time.sleep(POLL_S)


def writer_of(
    context: WorkerContext,
    ring: CheckpointRing,
    before_publishing: Callable[[], None],
    may_go_back: Callable[[], bool],
) -> CheckpointWriter:
    """Returns who writes checkpoints at this rank's place. `may_go_back`: see `SplitReplicas`."""
    place, attempt, registry = context.place, context.attempt, context.registry
    if place.is_alone:
        return SingleWriter(ring, before_publishing)
    if not place.is_first_rank:
        return OtherRankWriter(
            ring,
            before_publishing,
            place=place,
            attempt=attempt,
            alike=lambda: parameters_alike(registry.models),
        )
    replicas = SplitReplicas(
        ring=ring,
        schedule=context.schedule,
        journal=context.journal,
        warn=context.warn,
        may_go_back=may_go_back,
    )
    return FirstRankWriter(
        ring, before_publishing, place=place, attempt=attempt, on_split=replicas.found
    )
