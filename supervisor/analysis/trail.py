"""Reads the digests that runs left at every step, and finds where two runs diverge."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from supervisor.errors import SupervisorError
from supervisor.ranks import FIRST_RANK
from supervisor.storage.run.rundir import RunDirectory

PARTS = (
    *("weights", "optimizer", "scaler", "schedule", "tracked", "module", "rng", "variable"),
    "script",
)
"""In order of cause and effect, after data and loss; ``script`` is the script state of its
Python."""
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
class FirstDifference:
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


def read_trail(rundir: RunDirectory, rank: int = FIRST_RANK) -> list[Mark]:
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
        of_rank = f" of rank {rank}" if rank != FIRST_RANK else ""
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
) -> FirstDifference | None:
    """Returns the first difference between two runs, None if all digests are equal.

    Args:
        one, other: step → mark (`newest`).
        ignored: (part, name) pairs that do not count.
    """
    for step in sorted(one.keys() & other.keys()):
        difference = _compare(one[step], other[step], ignored)
        if difference is not None:
            return difference
    last = (max(one), max(other))
    if last[0] != last[1]:
        name = f"{last[0]} steps undisturbed, {last[1]} in the other run"
        return FirstDifference(what="steps", name=name, step=min(last))
    return None


def _compare(one: Mark, other: Mark, ignored: set[tuple[str, str]]) -> FirstDifference | None:
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
    return FirstDifference(what=what, name=differing[what], step=one.step, same=same)


def _first_name(
    part: str, one: Mapping[str, str], other: Mapping[str, str], ignored: set[tuple[str, str]]
) -> str | None:
    """Variables that only one run has do not count: whether one is seen can be chance. Nor does a
    script state that one run does not have, because there were too many objects."""
    if part == "script" and not (one and other):
        return None
    names = [*one, *(name for name in other if name not in one)]
    for name in names:
        if (part, name) in ignored or one.get(name) == other.get(name):
            continue
        if part != "variable" or (name in one and name in other):
            return name
    return None


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


def find_first_difference(
    one: Trails, other: Trails, ignored: Mapping[int, set[tuple[str, str]]]
) -> FirstDifference | None:
    """Returns the earliest difference of any rank, named with it if there are several.

    Args:
        one, other: of the same ranks.
        ignored: rank → (part, name) pairs that do not count.
    """
    found = {rank: part_ways(one[rank], other[rank], ignored[rank]) for rank in one}
    differences = {rank: difference for rank, difference in found.items() if difference is not None}
    if not differences:
        return None
    rank = min(differences, key=lambda rank: (differences[rank].step, rank))
    difference = differences[rank]
    if len(one) == 1:
        return difference
    return dataclasses.replace(difference, name=f"{difference.name} (rank {rank})")


def steps_of(trails: Trails) -> int:
    """Returns how many steps the first rank made."""
    return max(trails[FIRST_RANK])


_SEED = (
    "seed it at the top of the script (torch.manual_seed(0); random.seed(0); "
    "numpy.random.seed(0)), or here with --set seed=0"
)
_DETERMINISTIC = (
    "switch on torch.use_deterministic_algorithms(True) (on a GPU also "
    "CUBLAS_WORKSPACE_CONFIG=:4096:8, and torch.backends.cudnn.benchmark = False)"
)
_TRACK = (
    "give the object to supervisor.track(name=object): anything with state_dict and load_state_dict"
)

_BY_ITSELF = {
    "data": "two undisturbed runs saw different data: take the order from a seeded generator, not "
    "from the clock, the file system, a set or os.urandom; or " + _SEED,
    "operation": "two undisturbed runs on the same weights and data came out differently: an "
    "operation is not deterministic: " + _DETERMINISTIC,
    "schedule": "two undisturbed runs had different learning rates: the schedule must not depend "
    "on the clock",
    "steps": "two undisturbed runs made different numbers of steps: the end of the loop must not "
    "depend on the clock",
}
_BY_THE_BREAK = {
    "data": "the resumed script read different data: draw the order from torch's, NumPy's or "
    "Python's global generators or from the loader, or go through supervisor.batches(loader); what "
    "other sources (a stream, a file's position, another process) gave out cannot be read again",
    "hidden state": "the same batch on the same weights gave another result: the forward uses "
    "something that is neither a parameter, a buffer, a variable nor a global generator: "
    "keep it in a buffer, or " + _TRACK,
    "weights": "the weights were not put back as they were: build the model the same way whenever "
    "the script starts, and change weights only between forward and the next step",
    "optimizer": "the optimizer was not put back as it was: if it keeps state outside of "
    "optimizer.state, " + _TRACK,
    "rng": "a random generator stood elsewhere: do not draw from it in threads, in hooks or in "
    "between forward and backward in a way that depends on time",
    "scaler": "the gradient scaler was not put back as it was: use one torch.amp.GradScaler for "
    "the whole run",
    "schedule": "the learning rate was not the same: use a scheduler object of torch, or compute "
    "the rate from the step number; for a scheduler of your own, " + _TRACK,
    "tracked": "a tracked object was not put back as it was: its load_state_dict must restore all "
    "that its state_dict returns",
    "module": "a plain attribute of a module (a counter, a flag) was not the same: keep it in a "
    "buffer",
    "variable": "a tensor or array that a variable holds was not the same: keep it where "
    "it can be found again (a module, a plain variable), or " + _TRACK,
    "script": "a value that the script's Python holds was not the same: what it is made from (a "
    "place in C code, a file that changes, the clock) was not as it was; keep it in a plain "
    "variable, or " + _TRACK,
    "steps": "the resumed run made a different number of steps: the end of the loop must not "
    "depend on the clock or on files that an earlier attempt wrote",
}


def kind_of(difference: FirstDifference, *, by_itself: bool) -> str:
    """Returns what differs in the user's words: the part, an ``operation`` or ``hidden state``.

    If loss or weights differ although data and state were the same a step before, the computation
    itself is nondeterministic.

    Args:
        difference: the first difference.
        by_itself: it was seen between two undisturbed runs.
    """
    if difference.what == "loss":
        return "operation" if by_itself else "hidden state"
    if by_itself and difference.step > 0 and difference.what in ("weights", "optimizer"):
        return "operation"
    return difference.what


def advise(difference: FirstDifference, *, by_itself: bool) -> str:
    """Returns what to do about the first difference; arguments as for `kind_of`."""
    if by_itself and difference.step == 0:
        return f"two undisturbed runs began with different {difference.what}: {_SEED}"
    texts = _BY_ITSELF if by_itself else _BY_THE_BREAK
    kind = kind_of(difference, by_itself=by_itself)
    return texts.get(kind, f"two undisturbed runs differ: {_SEED}")
