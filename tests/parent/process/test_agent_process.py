"""The parent's view of ranks that an agent starts: each report is heeded, and none is awaited."""

from __future__ import annotations

import signal
from collections import deque
from types import SimpleNamespace
from typing import Any

from supervisor.parent.process.agent_process import RankProcesses

STARTED = {"started": {"0": 100, "1": 101}, "world_size": 2}


class FakeAgent:
    """Reports this, and nothing more."""

    family = None
    healing = None
    is_alive = True
    kept = SimpleNamespace(places={})

    def __init__(self, *reports: dict[str, Any]) -> None:
        self.reports = deque(reports)
        self.orders: list[dict[str, Any]] = []

    def revive(self) -> None:
        pass

    stop_save_for_dead = revive

    def order(self, **what: Any) -> None:
        self.orders.append(what)

    def next_report(self, timeout_s: float) -> dict[str, Any] | None:
        return self.reports.popleft() if self.reports else None


def started(agent: Any) -> RankProcesses:
    return RankProcesses(agent, ["worker"], [], meets_within_s=1.0)


def test_ranks_that_the_agent_has_ended_are_not_awaited() -> None:
    agent = FakeAgent(STARTED, {"ended": 1, "code": -9}, {"failed": "OSError: no memory"})
    process = started(agent)

    assert process.wait(0.0)
    assert dict(process.codes) == {0: -signal.SIGKILL, 1: -signal.SIGKILL}
    assert "no memory" in process.lost[0]


def test_what_is_said_of_ranks_of_an_earlier_attempt_is_no_start() -> None:
    agent = FakeAgent({"ended": 1, "code": -9}, {"again": 1, "pid": 7}, STARTED)

    assert started(agent).ranks == (0, 1)
