"""The agent answers each order, whenever it comes."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any

from supervisor.agent.rank_agent import RankAgent


class FakeChannel:
    """Gives these orders, and is closed then."""

    def __init__(self, orders: Sequence[dict[str, Any]]) -> None:
        self._orders = list(orders)
        self.reports: list[dict[str, Any]] = []

    @property
    def is_closed(self) -> bool:
        return not self._orders

    def next_order(self, timeout_s: float | None) -> dict[str, Any] | None:
        return self._orders.pop(0)

    def report(self, **what: Any) -> None:
        self.reports.append(what)


def test_a_rank_that_is_to_start_again_when_all_have_ended_has_ended() -> None:
    """Its parent waits for its word, and a failure would be taken for one of the next start."""
    channel: Any = FakeChannel([{"again": 1, "healing": {}}, {"standby": True}])
    agent = RankAgent(2, channel)
    for number, worker in enumerate(agent._worker_group.workers):
        worker.global_rank = number

    agent._invoke_run()

    assert channel.reports == [{"ended": 1, "code": -signal.SIGKILL}]
