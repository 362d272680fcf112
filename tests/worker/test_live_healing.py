"""The logs of collectives take what copies of the state leave; `auto` asks what a start takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.held_memory import HeldMemory
from supervisor.settings import SnapshotSettings
from supervisor.storage.run.kept_memory import PLACES
from supervisor.worker import live_healing
from supervisor.worker.healing.collectives import Mode
from supervisor.worker.live_healing import LOG_STATES, LiveHealing

SIZE = 2_000_000
TOLD: list[str] = []


class FakeCollectives:
    wants_state = False
    mode, objection, beginning_bytes = Mode.MADE, "", 0

    def __init__(self) -> None:
        self.on_met: list[Any] = []
        self.kept: list[tuple[int, int, int]] = []
        self.objections: list[str] = []

    def state_kept(self, place: int, step: int, most_bytes: int) -> None:
        self.kept.append((place, step, most_bytes))

    def states_forgotten(self) -> None:
        pass

    def object_to(self, why: str) -> None:
        self.objection = why
        self.objections.append(why)

    def boundary(self, step: int, now_s: float) -> None:
        pass


def healing_with(collectives: FakeCollectives, healing: str = "on") -> LiveHealing:
    context: Any = SimpleNamespace(
        journal=None,
        progress=None,
        rank=0,
        place=SimpleNamespace(is_first_rank=True),
        warn=lambda why, aloud: TOLD.append(why),
        settings=SimpleNamespace(restart=SimpleNamespace(healing=healing)),
    )
    ranks: Any = SimpleNamespace(collectives=collectives)
    exchanges: Any = None
    return LiveHealing(context, ranks, exchanges, lambda: None)


@pytest.mark.parametrize(
    ("free", "states"),
    [(10_000 * SIZE, LOG_STATES), (4 * 2 * PLACES * SIZE, 2), (4 * PLACES * SIZE - 8, 0)],
)
def test_logs_are_as_large_as_there_is_room(free: int, states: int) -> None:
    collectives = FakeCollectives()
    healing = healing_with(collectives)
    memory: Any = SimpleNamespace()
    held = HeldMemory(SnapshotSettings(), free=lambda: free, at_peak=lambda: 0)
    held.has_trained, held.size = True, SIZE
    healing.follow(memory, held)

    memory.on_kept(1, 20)

    assert collectives.kept == ([(1, 20, states * SIZE)] if states else [])
    assert ["snapshot.max_share" in why for why in collectives.objections] == [True] * (not states)


@pytest.mark.parametrize(("shortest_s", "objects"), [(0.0, False), (1e9, True)])
def test_auto_asks_whether_the_set_up_is_long(
    monkeypatch: pytest.MonkeyPatch, shortest_s: float, objects: bool
) -> None:
    monkeypatch.setattr(live_healing, "SHORTEST_SET_UP_S", shortest_s)
    collectives = FakeCollectives()
    healing = healing_with(collectives, "auto")
    TOLD.clear()

    healing.at_boundary(1)
    healing.at_boundary(2)

    assert len(collectives.objections) == len(TOLD) == objects
