"""Many tensors compared at once: which of them deserve a look at each element."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from supervisor.training_state.bounds.comparison import WEIGHT, Entries
from supervisor.training_state.bounds.limits import Limits
from supervisor.training_state.tensors import outside_autograd

Tensors = list[torch.Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class TensorCase:
    """One tensor with its entries at two looks, and what lies between them at most."""

    then: Entries
    now: Entries
    limits: Limits


def suspects(cases: Sequence[TensorCase]) -> list[TensorCase]:
    """Returns the cases in which a largest value is beyond a bound, or is not finite.

    A few calls for all tensors of a type; only `breaches` says what is really beyond.
    """
    kinds: defaultdict[tuple[torch.dtype, torch.device], list[TensorCase]] = defaultdict(list)
    for case in cases:
        kinds[case.now[WEIGHT].dtype, case.now[WEIGHT].device].append(case)
    found: list[TensorCase] = []
    with outside_autograd():
        for alike in kinds.values():
            worst = _Worst()
            worst.moved(alike)
            worst.fell(alike)
            worst.paired(alike)
            worst.remembered(alike)
            found += worst.beyond()
    return found


class _Worst:
    """Largest values, read from the device together."""

    def __init__(self) -> None:
        self._values: Tensors = []
        self._lines: list[float] = []
        self._cases: list[TensorCase] = []

    def moved(self, cases: list[TensorCase]) -> None:
        bounded = [case for case in cases if case.limits.weight is not None]
        if not bounded:
            return
        lines = [case.limits.weight.constant for case in bounded if case.limits.weight]
        then = [case.then[WEIGHT] for case in bounded]
        moved = torch._foreach_sub([case.now[WEIGHT] for case in bounded], then)
        self._add(bounded, _largest_size(list(moved)), lines)

    def fell(self, cases: list[TensorCase]) -> None:
        for name in {name for case in cases for name in case.limits.floors}:
            there = [c for c in cases if name in c.limits.floors and name in c.then.keys() & c.now]
            if not there:
                continue
            floors = [case.limits.floors[name] for case in there]
            least = torch._foreach_mul([c.then[name] for c in there], [f.factor for f in floors])
            torch._foreach_sub_(least, [case.now[name] for case in there])
            self._add(there, _largest(list(least)), [floor.slack for floor in floors])

    def paired(self, cases: list[TensorCase]) -> None:
        there = [
            case
            for case in cases
            if (pair := case.limits.pair) and {pair.first, pair.second} <= case.now.keys()
        ]
        for is_root in (True, False):
            alike = [(c, p) for c in there if (p := c.limits.pair) and p.is_root is is_root]
            if not alike:
                continue
            second = [case.now[pair.second] for case, pair in alike]
            constants = [pair.constant for _, pair in alike]
            most = torch._foreach_sqrt(second) if is_root else torch._foreach_abs(second)
            torch._foreach_mul_(most, constants)
            size = torch._foreach_abs([case.now[pair.first] for case, pair in alike])
            torch._foreach_sub_(size, most)
            self._add([c for c, _ in alike], _largest(list(size)), [p.slack for _, p in alike])

    def remembered(self, cases: list[TensorCase]) -> None:
        there = [c for c in cases if c.limits.memory_limit and c.limits.memory in c.now]
        if there:
            lines = [
                case.limits.memory_limit.constant for case in there if case.limits.memory_limit
            ]
            self._add(there, _largest_size([c.now[c.limits.memory] for c in there]), lines)

    def beyond(self) -> list[TensorCase]:
        if not self._values:
            return []
        values = torch.stack([value.float() for value in self._values]).tolist()
        found = zip(values, self._lines, self._cases, strict=True)
        over = {id(case): case for value, line, case in found if not value <= line}
        return list(over.values())

    def _add(self, cases: list[TensorCase], values: Tensors, lines: list[float]) -> None:
        self._values += values
        self._lines += lines
        self._cases += cases


_foreach_max: Callable[[Tensors], Sequence[torch.Tensor]] = torch._foreach_max


def _largest(tensors: Tensors) -> Tensors:
    return list(_foreach_max(tensors))


def _largest_size(tensors: Tensors) -> Tensors:
    # Not `_foreach_norm`: on CPUs its infinite norm takes several times as long.
    return _largest(list(torch._foreach_abs(tensors)))
