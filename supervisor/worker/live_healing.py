"""A rank that died comes back alone: what the parts of its new process do about it.

Nothing is saved, kept or told twice: until it stands where its rank was, its journal is silent, and
a treatment of its own ends the attempt.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psutil

from supervisor.errors import ReplayError
from supervisor.events.state_events import Healed
from supervisor.held_memory import HeldMemory
from supervisor.storage.run import healing_memory
from supervisor.storage.run.kept_memory import PLACES
from supervisor.worker.checkpoints.rank_memory import RankMemory
from supervisor.worker.core.part import ALWAYS, Arrived, Ended, Part, SavePoint
from supervisor.worker.core.worker_context import WorkerContext
from supervisor.worker.healing.collectives import Mode
from supervisor.worker.ranks.exchanges import Exchanges
from supervisor.worker.ranks.rank_context import RankContext

SHORTEST_SET_UP_S = 10.0
"""With ``restart.healing: auto`` a shorter one is no reason to pay for healing."""
LOG_STATES, LEAST_LOG = 32, 1 << 20
"""A log takes so many times the state where there is room: a step of Adam adds a third of it, and
new states come some 50 steps apart then. The least is one, and as many bytes."""
HEALING = "healing"
"""In the meta of a kept state: where its rank stood among the others."""


class LiveHealing(Part):
    """See the module's docstring; does nothing where all ranks are started again.

    Args:
        ranks, exchanges: of this process.
        forget_snapshots: drops those that a rank which comes back does not have.
    """

    name = "healing of ranks"

    def __init__(
        self,
        context: WorkerContext,
        ranks: RankContext,
        exchanges: Exchanges,
        forget_snapshots: Callable[[], None],
    ) -> None:
        self._ranks = ranks
        self._collectives = collectives = ranks.collectives
        self._exchanges = exchanges
        self._journal = context.journal
        self._progress = context.progress
        self._rank = context.rank
        self._at_step = -1
        self._memory: HeldMemory | None = None
        self._is_auto = self._tells = context.settings.restart.healing == "auto"
        self._warn, self._is_first = context.warn, context.place.is_first_rank
        if collectives is None:
            return
        collectives.on_met.append(forget_snapshots)
        if healing_memory.takes_dead_ranks_place():
            self._journal.is_silent = True
            context.schedule.repeats = lambda: collectives.repeats
            collectives.on_met.append(self._caught_up)

    def follow(self, memory: RankMemory | None, held: HeldMemory) -> Callable[[], bool] | None:
        """What comes after each state that is kept there is logged from here on.

        Returns:
            Whether one is to be kept soon; None where there are no such states.
        """
        collectives = self._collectives
        if collectives is None or memory is None:
            return None
        self._memory = held
        memory.on_kept = self._state_kept
        memory.on_forgotten = collectives.states_forgotten
        return lambda: collectives.wants_state

    def _state_kept(self, place: int, step: int) -> None:
        """The logs take what copies of the state leave, or nothing is healed."""
        collectives, held = self._collectives, self._memory
        if collectives is None or held is None or collectives.objection:
            return
        size, beginning = max(held.size, LEAST_LOG), collectives.beginning_bytes
        times = LOG_STATES
        while times and not held.takes_beside(PLACES * times * size + beginning):
            times //= 2
        if times:
            collectives.state_kept(place, step, times * size)
        else:
            collectives.object_to("its logs would take more memory than snapshot.max_share leaves")

    def training_starts(self) -> None:
        if self._collectives is not None:
            self._collectives.training_starts()

    def next_boundary(self, step: int) -> tuple[float, float]:
        is_measured = self._collectives is not None and self._collectives.is_measured
        return ALWAYS if is_measured else super().next_boundary(step)

    def at_boundary(self, step: int) -> None:
        collectives = self._collectives
        if collectives is None:
            return
        if self._is_auto and collectives.mode is Mode.MADE:
            self._is_auto = False
            set_up_s = time.time() - psutil.Process().create_time()
            if set_up_s <= SHORTEST_SET_UP_S:
                collectives.object_to(
                    f"the set-up took {set_up_s:.1f} s, and only above {SHORTEST_SET_UP_S:.0f} s "
                    "is it worth its cost"
                )
        collectives.boundary(step, time.monotonic())
        if self._tells and collectives.objection:
            self._tells = False
            told = f"a killed rank has all start again: {collectives.objection}"
            self._warn(told, aloud=self._is_first)

    def save(self, point: SavePoint) -> None:
        if self._collectives is not None and point.for_later:
            point.note({HEALING: self._standing()})

    def after_state(self, arrived: Arrived) -> list[str]:
        if healing_memory.takes_dead_ranks_place() and HEALING not in arrived.meta:
            raise ReplayError("the kept state does not tell where its rank stood")
        return []

    def goes_live(self, arrived: Arrived) -> None:
        """Its rank's collectives are answered from here on."""
        own, collectives = healing_memory.mine, self._collectives
        if own is None or collectives is None or not own.is_healing:
            return
        standing: dict[str, Any] = arrived.meta[HEALING]
        self._at_step = arrived.step
        self._exchanges.stand_at(standing["exchanges"])
        self._ranks.agreement.stand_at(standing["agreement"])
        collectives.catch_up(arrived.step, standing["called"])

    def ends(self, how: Ended) -> None:
        """The script may come to its end without another collective."""
        collectives = self._collectives
        if collectives is None or not collectives.is_catching_up or collectives.repeats:
            return
        if how.completed:
            self._caught_up()

    def _standing(self) -> dict[str, Any]:
        assert self._collectives is not None
        return {
            "called": dict(self._collectives.called),
            "exchanges": self._exchanges.standing(),
            "agreement": self._ranks.agreement.standing(),
        }

    def _caught_up(self) -> None:
        """All ranks are together again; called for the first time after the answers."""
        own, collectives = healing_memory.mine, self._collectives
        if own is None or collectives is None or not self._journal.is_silent:
            return
        assert not collectives.repeats
        self._journal.is_silent = False
        self._journal.write(
            Healed(
                step=self._progress.steps_done,
                from_step=self._at_step,
                waited_s=time.time() - own.died_s,
                answered=collectives.answers,
            )
        )
        collectives.tell_caught_up()
