"""The trails of all ranks of a run, and where two runs diverge first; one process is one rank."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TypeAlias

from supervisor.analysis.verify.trail import (
    Mark,
    Parting,
    newest,
    part_ways,
    private_names,
    read_trail,
)
from supervisor.ranks import LEAD_RANK
from supervisor.storage.run.rundir import RunDirectory

Trails: TypeAlias = Mapping[int, Mapping[int, Mark]]
"""Rank → steps done → the mark of the newest attempt."""


def read_trails(rundir: RunDirectory, ranks: int) -> Trails:
    """Returns the trails of so many ranks.

    Raises:
        SupervisorError: one of them made no step.
    """
    return {rank: newest(read_trail(rundir, rank)) for rank in range(ranks)}


def private_to(one: Trails, other: Trails) -> dict[int, set[tuple[str, str]]]:
    """Returns rank → (part, name) of harmless differences between two undisturbed runs."""
    return {rank: private_names(one[rank], other[rank]) for rank in one}


def first_parting(
    one: Trails, other: Trails, ignored: Mapping[int, set[tuple[str, str]]]
) -> Parting | None:
    """Returns the earliest difference of any rank, named with it if there are several.

    Args:
        one, other: of the same ranks.
        ignored: rank → (part, name) pairs that do not count.
    """
    found = {rank: part_ways(one[rank], other[rank], ignored[rank]) for rank in one}
    partings = {rank: parting for rank, parting in found.items() if parting is not None}
    if not partings:
        return None
    rank = min(partings, key=lambda rank: (partings[rank].step, rank))
    parting = partings[rank]
    if len(one) == 1:
        return parting
    return dataclasses.replace(parting, name=f"{parting.name} (rank {rank})")


def steps_of(trails: Trails) -> int:
    """Returns how many steps the first rank made."""
    return max(trails[LEAD_RANK])
