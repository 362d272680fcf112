"""Saving by several ranks: the first one's side."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from supervisor.errors import CheckpointError, StateNotFinite
from supervisor.ranks import RankPlace
from supervisor.storage.checkpoints.checkpoints import Checkpoint, CheckpointRing
from supervisor.storage.checkpoints.manifest import FileSum
from supervisor.storage.checkpoints.parts import (
    RANKS,
    call_all_off,
    call_off,
    is_all_called_off,
    is_called_off,
    part_path,
    rank_folder,
    read_part,
    refusal_of,
    remove_parts,
    take_part,
)
from supervisor.storage.files import aside
from supervisor.storage.files.private_files import make_private
from supervisor.storage.files.refusals import told_refusals
from supervisor.training_state.replicas import Split, splits
from supervisor.training_state.replicated import tensor_digests
from supervisor.training_state.sharding.rank_state import read_rank_state
from supervisor.training_state.snapshot import state_bytes
from supervisor.worker.capture.checkpoint_writer import CapturedCheckpoint
from supervisor.worker.capture.single_writer import SingleWriter, fill, make_durable, with_digest
from supervisor.worker.group.exchanges import check_same_place

TIMEOUT_S = 600.0
"""For the slowest rank to write its part. A rank that has died ends the attempt long before."""
POLL_S = 0.005
DIVERGED = "diverged"
"""In a part's meta: path → digest of replicas that differ from the first rank's."""
DIGESTS = "digests.json"
"""In the folder of the first rank's part: of its tensors."""


class LeadWriter(SingleWriter):
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
