"""Reads the digests that runs left at every step, and finds where two runs diverge."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from supervisor.errors import SupervisorError
from supervisor.ranks import LEAD_RANK
from supervisor.storage.run.rundir import RunDirectory

PARTS = (
    *("weights", "optimizer", "scaler", "schedule", "tracked", "module", "rng", "variable"),
    "script",
)
"""In order of cause and effect, after data and loss; ``script`` is the census of its Python."""
PRIVATE_PARTS = ("rng", "variable", "script")
"""May differ between runs without effect: an unused generator, a clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The digests of one boundary; `step` counts the steps done there.

    Attributes:
        data, loss: batch and loss of the step before this boundary; None if unknown (the first
            boundary of a process).
        parts: part (`PARTS`) → name → digest.
    """

    attempt: int
    step: int
    data: str | None
    loss: str | None
    parts: Mapping[str, Mapping[str, str]]
    wait_s: float | None
    cost_s: float
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """The first difference between two runs.

    Attributes:
        what: ``data``, ``loss``, ``steps`` (one run made fewer), or one of `PARTS`.
        name: which one: ``optimizer_0.exp_avg of model_0.0.weight``, ``torch``.
        step: steps done at the boundary where it was seen.
        same: the parts that are equal at that boundary.
    """

    what: str
    name: str
    step: int
    same: frozenset[str] = frozenset()


def read_trail(rundir: RunDirectory, rank: int = LEAD_RANK) -> list[Mark]:
    """Returns all marks in the order of writing, without a torn last line.

    Raises:
        SupervisorError: there are none: no step was seen.
    """
    marks: list[Mark] = []
    try:
        lines = rundir.trail(rank).read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        try:
            marks.append(Mark(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    if not marks:
        of_rank = f" of rank {rank}" if rank != LEAD_RANK else ""
        raise SupervisorError(
            f"{rundir.root}: no training step{of_rank} was seen: the script must train with torch, "
            "in the process that is started"
        )
    return marks


def newest(marks: Iterable[Mark]) -> dict[int, Mark]:
    """Returns step → its mark of the newest attempt."""
    return {mark.step: mark for mark in marks}


def private_names(one: Mapping[int, Mark], other: Mapping[int, Mark]) -> set[tuple[str, str]]:
    """Returns (part, name) of harmless differences between two undisturbed runs."""
    found: set[tuple[str, str]] = set()
    for step in one.keys() & other.keys():
        for part in PRIVATE_PARTS:
            a, b = one[step].parts.get(part, {}), other[step].parts.get(part, {})
            found |= {(part, name) for name in a.keys() | b.keys() if a.get(name) != b.get(name)}
    return found


def part_ways(
    one: Mapping[int, Mark],
    other: Mapping[int, Mark],
    ignored: set[tuple[str, str]],
) -> Parting | None:
    """Returns the first difference between two runs, None if all digests are equal.

    Args:
        one, other: step → mark (`newest`).
        ignored: (part, name) pairs that do not count.
    """
    for step in sorted(one.keys() & other.keys()):
        parting = _compare(one[step], other[step], ignored)
        if parting is not None:
            return parting
    last = (max(one), max(other))
    if last[0] != last[1]:
        name = f"{last[0]} steps undisturbed, {last[1]} in the other run"
        return Parting(what="steps", name=name, step=min(last))
    return None


def _compare(one: Mark, other: Mark, ignored: set[tuple[str, str]]) -> Parting | None:
    differing: dict[str, str] = {}
    for what, a, b in (("data", one.data, other.data), ("loss", one.loss, other.loss)):
        if a is not None and b is not None and a != b:
            differing[what] = f"of step {one.step - 1}"
    for part in PARTS:
        name = _first_name(part, one.parts.get(part, {}), other.parts.get(part, {}), ignored)
        if name is not None:
            differing[part] = name
    if not differing:
        return None
    what = next(iter(differing))
    same = frozenset(("data", "loss", *PARTS)) - differing.keys()
    return Parting(what=what, name=differing[what], step=one.step, same=same)


def _first_name(
    part: str, one: Mapping[str, str], other: Mapping[str, str], ignored: set[tuple[str, str]]
) -> str | None:
    """Variables that only one run has do not count: whether one is seen can be chance. Nor does a
    census that one run does not have, because there were too many objects."""
    if part == "script" and not (one and other):
        return None
    names = [*one, *(name for name in other if name not in one)]
    for name in names:
        if (part, name) in ignored or one.get(name) == other.get(name):
            continue
        if part != "variable" or (name in one and name in other):
            return name
    return None
