"""Which events of a journal are treatments: what terminal, report and their counts agree on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

ALSO = {"rollback": "rollback", "update_skipped": "skip_update", "restart": "restart"}
"""Events of their own kind that tell of a treatment, unless an `action` line told of it before."""
PROTECTIVE = frozenset({"checkpoint", "snapshot"})
"""They change nothing about the run."""
NOT_DONE = frozenset({"refused", "would_have", "would have", "not applied"})


def is_verdict(event: Mapping[str, Any]) -> bool:
    """Says whether an `action` line tells the later outcome of an action, and is none itself."""
    return event.get("phase") == "verified"


def times(event: Mapping[str, Any]) -> int:
    """Returns for how many events this one stands: itself, and those left out of the journal."""
    left_out = event.get("left_out")
    return 1 + (left_out if isinstance(left_out, int) and left_out > 0 else 0)


class Treatments:
    """Picks the treatments out of a journal, each once, as its events come."""

    def __init__(self) -> None:
        self._acted: set[tuple[str, Any, Any]] = set()

    def pick(self, events: Iterable[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
        """Returns name and event of those among the next events that changed the training.

        Restarts are left out: they are counted by themselves, as attempts.
        """
        told = [
            event
            for event in events
            if event.get("kind") in ("action", *ALSO) and not is_verdict(event)
        ]
        self._acted |= {_place(event) for event in told if event["kind"] == "action"}
        found = []
        for event in told:
            name = _name(event)
            if event["kind"] != "action" and _place(event) in self._acted:
                continue
            if name != "restart" and is_done(name, event):
                found.append((name, event))
        return found


def _name(event: Mapping[str, Any]) -> str:
    name = event.get("name")
    if isinstance(name, str) and name.isidentifier():
        return name
    return ALSO.get(str(event["kind"]), "unnamed")


def _place(event: Mapping[str, Any]) -> tuple[str, str, str]:
    return _name(event), str(event.get("attempt")), str(event.get("step"))


def is_done(name: str, event: Mapping[str, Any]) -> bool:
    """Says whether an event that tells of the treatment `name` tells that it was made."""
    if name in PROTECTIVE or str(event.get("outcome") or "") in NOT_DONE:
        return False
    return not (event.get("applied") is False and not event.get("outcome"))


def count_treatments(events: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Returns how often each treatment was made in a whole journal."""
    counted: Counter[str] = Counter()
    for name, event in Treatments().pick(events):
        counted[name] += times(event)
    return counted
