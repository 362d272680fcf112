"""Saving by several ranks: the side of all but the first."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from supervisor.errors import CheckpointError
from supervisor.ranks import LEAD_RANK, RankPlace
from supervisor.storage.checkpoints.checkpoints import Checkpoint, CheckpointRing
from supervisor.storage.checkpoints.parts import (
    REFUSED,
    call_all_off,
    call_off,
    is_all_called_off,
    is_called_off,
    part_of,
    part_path,
    publish_part,
)
from supervisor.storage.files.refusals import told_refusals
from supervisor.training_state.replicas import diverged, shared_paths
from supervisor.training_state.replicated import tensor_digests, without_replicated
from supervisor.training_state.sharding.rank_state import read_rank_state
from supervisor.worker.capture.checkpoint_writer import CapturedCheckpoint, CheckpointWriter
from supervisor.worker.capture.lead_writer import DIGESTS, DIVERGED, POLL_S, TIMEOUT_S
from supervisor.worker.capture.single_writer import fill, make_durable, streamed, with_digest

TELLS_WITHIN_S = 60.0
"""For the first rank to say what it saves; behind that, this rank saves all of its own."""


class FollowerWriter(CheckpointWriter):
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
        if is_called_off(self._part(step, LEAD_RANK), self._saves):
            raise CheckpointError(f"checkpoint of step {step}: the first rank could not save it")
        if is_all_called_off(self._ring.folder, self._attempt, LEAD_RANK):
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
        path = self._part(step, LEAD_RANK) / DIGESTS
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
