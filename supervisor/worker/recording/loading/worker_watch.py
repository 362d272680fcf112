"""Watches loading inside a loader worker's own process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from supervisor.errors import pass_on
from supervisor.training_state.draws import Generators, advance, between, look
from supervisor.worker.ground.budget import Share
from supervisor.worker.ground.interception_state import InterceptionState
from supervisor.worker.recording.loading.loading_proof import LoadingProof
from supervisor.worker.recording.loading.worker_proof import (
    CLOSELY,
    Positioned,
    WorkerBatch,
    WorkerNote,
    WorkerProof,
)

_BUDGET = Share(0.02)
"""Of a worker's time, for comparing."""


class WorkerWatch:
    """Lives as long as its process; what goes wrong in here ends the watch, not the loading."""

    def __init__(
        self, proof: WorkerProof, data: Any, collate: Any, interception: InterceptionState
    ) -> None:
        self._promised = proof.promised
        self._closely = 0 if proof.promised else 1 if proof.was_watched else CLOSELY
        self._proof = LoadingProof(0, data, collate, interception, in_worker=True)
        self._is_over = False
        self._fetches = 0
        self._compare_at = 0.0

    def fetch(self, given: Any, load: Callable[[Any], Any]) -> Any:
        """Returns the batch, with a `WorkerNote` while something is noted."""
        indices, astray = given, ""
        if isinstance(given, Positioned):
            indices = given.indices
            try:
                advance(given.drawn)
            except ValueError as error:
                astray = str(error)
        if self._is_over and not astray:
            return load(indices)
        self._is_over = True  # in case that loading raises: what it drew is not noted then
        earlier, started = look(), time.perf_counter()
        is_close = self._fetches < self._closely
        if is_close:
            batch = self._proof.watch_closely(indices, lambda: load(indices))
        else:
            batch = load(indices)
        seconds = time.perf_counter() - started
        try:
            note = self._note(earlier, 0.0 if is_close else seconds, astray, is_close=is_close)
        except BaseException as error:
            pass_on(error)
            return batch
        self._fetches += 1
        self._is_over = bool(note.fault)
        return WorkerBatch(batch, note)

    def _note(
        self, earlier: Generators, seconds: float, astray: str, *, is_close: bool
    ) -> WorkerNote:
        drawn = between(earlier, look())
        is_verified = self._promised or is_close
        started = time.perf_counter()
        if not is_verified and started >= self._compare_at:
            self._proof.compare()
            is_verified = True
            now = time.perf_counter()
            self._compare_at = now + _BUDGET.apart_s(now - started)
        fault = self._proof.reason
        return WorkerNote(drawn, is_verified and not fault, fault, astray, seconds)
