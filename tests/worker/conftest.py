"""Workers in this process, ended when the test is over."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from supervisor.worker.script_state import user_frames
from tests.worker.live_worker import LiveWorker

Start = Callable[..., LiveWorker]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts a `LiveWorker`, whose script has no variables: those of pytest are none of its own."""
    monkeypatch.setattr(user_frames, "is_users", lambda path: False)
    monkeypatch.setattr(user_frames, "_users_modules", list)
    started: list[LiveWorker] = []

    def begin(
        *args: object, of: Callable[..., LiveWorker] = LiveWorker, **more: object
    ) -> LiveWorker:
        live = of(*args, **more)
        started.append(live)
        return live

    yield begin
    for live in started:
        live.stop()
