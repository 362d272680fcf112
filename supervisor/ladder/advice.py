"""Which of the treatments that helped in similar cases may be tried first."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from supervisor.records import Cause
from supervisor.settings import PolicySettings

NOT_ADVISED = frozenset({"checkpoint", "skip_update", "restart", "stop"})
"""Not a case library's business: saving, the guard's work, and what is reached by escalation."""


class Advice:
    """Advice changes the order of a policy's treatments, never its choice of them.

    Each treatment is advised once an episode; after that the policy's own order holds.
    """

    def __init__(self, policy: PolicySettings) -> None:
        self.policy = policy
        self._tried: list[str] = []

    def forget(self) -> None:
        """The episode is over."""
        self._tried = []

    def choose(
        self, names: Sequence[str], cause: Cause, only: Collection[str] | None = None
    ) -> str | None:
        """Returns the first of `names` that the policy has for `cause`; None for none.

        Args:
            names: treatments that helped in similar cases, the best first.
            cause: of the present trouble.
            only: where trouble leaves no time for anything milder, what may be tried.
        """
        if not self.policy.case_library:
            return None
        offered = self._offered(cause) - NOT_ADVISED
        for name in names:
            if name in offered and name not in self._tried and (only is None or name in only):
                self._tried.append(name)
                return name
        return None

    def _offered(self, cause: Cause) -> set[str]:
        rungs = [r for r in self.policy.rungs if not r.causes or cause.value in r.causes]
        own = self.policy.by_cause.get(cause.value, [])
        return {name for rung in rungs for name in rung.actions} | set(own)

    def state_dict(self) -> dict[str, Any]:
        return {"tried": list(self._tried)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._tried = list(state["tried"])
