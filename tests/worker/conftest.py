"""Workers in this process, ended when the test is over."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.worker.live_worker import LiveWorker

Start = Callable[..., LiveWorker]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a `LiveWorker`."""
    started: list[LiveWorker] = []

    def begin(*args: object, **more: object) -> LiveWorker:
        live = LiveWorker(*args, **more)  # type: ignore[arg-type]
        started.append(live)
        return live

    yield begin
    for live in started:
        live.end()
