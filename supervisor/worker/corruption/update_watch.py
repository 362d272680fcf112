"""Keeps what the updates since the last look were: rates, norms, and who wrote.

What the updates of an optimizer that torch does not ship say about its algebra.
"""

from __future__ import annotations

import math
import operator
import statistics
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from supervisor.by_identity import ByIdentity, IdentitySet
from supervisor.training_state.optimizer_state import optimizer_parameters
from supervisor.training_state.registry import Registry
from supervisor.training_state.tensors import outside_autograd
from supervisor.worker.corruption.comparison import WEIGHT
from supervisor.worker.corruption.families import candidate_for, family_of
from supervisor.worker.corruption.limits import Rounding, Update
from supervisor.worker.corruption.normalisation_watch import NormalisationWatch
from supervisor.worker.corruption.optimizer_family import OptimizerFamily, SeenUpdate, sample

TENSORS = 64
"""Looked at in one update; a larger model is looked at in turns."""
ELEMENTS = 2048
"""Of one tensor."""
ENOUGH = 64
"""Elements that are exactly what the algebra makes of them."""
_Half = tuple[dict[str, torch.Tensor], torch.Tensor, Update, Rounding]


class ForeignOptimizer:
    """Watches single updates, one between two looks, from the second on.

    Attributes:
        family: that of its name and settings; None if it has none, or an update was another.
        is_proved: enough updates were the family's, element by element, and none was another.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.family: OptimizerFamily | None = candidate_for(optimizer)
        self._right = 0
        self._seen = 0
        self._wanted = 1
        self._open: list[tuple[torch.Tensor, _Half]] = []

    @property
    def is_proved(self) -> bool:
        return self.family is not None and self._right >= ENOUGH and self._seen >= self._wanted

    def update_begins(self, optimizer: Optimizer) -> None:
        """An update is about to be made."""
        family, self._open = self.family, []
        if family is None:
            return
        everything = [(p, group) for group in optimizer.param_groups for p in group["params"]]
        turns = max(1, math.ceil(len(everything) / TENSORS))
        self._wanted = turns
        with outside_autograd():
            for parameter, group in everything[self._seen % turns :: turns]:
                half = _before(parameter, optimizer.state.get(parameter, {}), group, family)
                if half is not None:
                    self._open.append((parameter, half))

    def update_ended(self, optimizer: Optimizer) -> None:
        """It was made."""
        family, halves = self.family, self._open
        self._open = []
        if family is None or not halves:
            return
        right = wrong = 0
        with outside_autograd():
            for parameter, (before, gradient, update, rounding) in halves:
                entries = optimizer.state.get(parameter, {})
                seen = SeenUpdate(
                    before=before,
                    after=_sampled(parameter, entries),
                    gradient=gradient,
                    update=update,
                    count=_count(entries.get(family.counts)) if family.counts else 0,
                    rounding=rounding,
                )
                found = _explained(family, seen)
                right, wrong = right + found[0], wrong + found[1]
        self._seen += 1
        self._right += right
        if wrong:
            self.family = None


def _explained(family: OptimizerFamily, seen: SeenUpdate) -> tuple[int, int]:
    try:
        return family.explains(seen)
    except (TypeError, ValueError, KeyError, OverflowError, ZeroDivisionError, RuntimeError):
        return 0, 1  # settings or entries that the family does not have


def _before(
    parameter: torch.Tensor, entries: Mapping[str, Any], group: Mapping[str, Any], family: Any
) -> _Half | None:
    gradient, rounding = parameter.grad, Rounding.of(parameter.dtype)
    if gradient is None or gradient.layout is not torch.strided or rounding is None:
        return None
    update = Update({key: group.get(key) for key in family.keys})
    return _sampled(parameter, entries), sample(gradient, ELEMENTS), update, rounding


def _sampled(parameter: torch.Tensor, entries: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    sampled = {WEIGHT: sample(parameter, ELEMENTS)}
    for key, value in entries.items():
        if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
            sampled[key] = sample(value, ELEMENTS)
    return sampled


def _count(value: object) -> int:
    if isinstance(value, torch.Tensor):
        # Not `.item()`: this read is ours, and is not on the replay log.
        value = torch._C.TensorBase.item(value) if value.numel() == 1 else 0
    return int(value) if isinstance(value, (int, float)) else 0


MANY, ROWS = 1000, 20_000
"""So many updates between two looks are kept, or as many as there are rows of a parameter group's
settings (100 bytes each) for all groups; what more of them have done nobody knows."""
PROBED = 2
"""Which update since the last look is looked at more closely where torch does not ship the
optimizer."""
WILD = 4.0
"""Times the median norm: healthy runs reach it in single steps, but not beside corrupted state."""
ROUNDED = 1 + 2**-6
"""A norm of BF16 gradients is one of BF16."""

Versions = dict[str, int]
"""Torch's counters of writes, by entry of the optimizer; `""` is the parameter itself."""


class WatchedOptimizer:
    """The updates of one optimizer since the last look.

    Attributes:
        family: its algebra.
        foreign: what speaks for it, if torch does not ship this optimizer.
        parameters: in the order of its groups, as at the last look.
        versions: of each parameter and its entries, at the last look.
        written: how often one update writes to each, as seen at the first update since.
        places: addresses of the parameters at the last look.
        is_broken: an update failed, or there were too many: nothing is known.
    """

    def __init__(
        self, optimizer: Optimizer, family: OptimizerFamily, foreign: ForeignOptimizer | None
    ) -> None:
        self.family = family
        self.foreign = foreign
        self.parameters = optimizer_parameters(optimizer)
        self.versions = [_versions(optimizer, p) for p in self.parameters]
        self.places = [p.data_ptr() for p in self.parameters]
        self.written: list[Versions] | None = None
        self.is_broken = len(set(map(id, self.parameters))) < len(self.parameters)
        self._optimizer = weakref.ref(optimizer)
        self._read = operator.itemgetter(*_keys(family, optimizer))
        self._names = _keys(family, optimizer)
        self._groups = len(optimizer.param_groups)
        self._most = max(MANY, ROWS // max(1, self._groups))
        self._rows: list[tuple[list[tuple[Any, ...]], float]] = []
        self._before: list[Versions] | None = None

    def update_begins(self, optimizer: Optimizer, norm: float) -> bool:
        """Returns whether `end` is to count what the update writes."""
        groups = optimizer.param_groups
        if self.is_broken or len(groups) != self._groups or len(self._rows) >= self._most:
            self.is_broken = True
            return False
        read = self._read
        self._rows.append(([read(group) for group in groups], norm))
        if self.written is None:
            self._before = [_versions(optimizer, p) for p in self.parameters]
            return True
        if self.foreign is not None and self.count == PROBED:
            self.foreign.update_begins(optimizer)
            return True
        return False

    def update_ended(self, optimizer: Optimizer) -> None:
        if self.foreign is not None and self.count == PROBED:
            self.foreign.update_ended(optimizer)
        if self._before is None:
            return
        before, self._before = self._before, None
        after = [_versions(optimizer, p) for p in self.parameters]
        self.written = [
            {key: now[key] - then[key] for key in then.keys() & now.keys()}
            for then, now in zip(before, after, strict=True)
        ]

    def norm_is(self, norm: float) -> None:
        """That of the newest update, which began with NaN, is known."""
        if self._rows and math.isnan(self._rows[-1][1]):
            self._rows[-1] = self._rows[-1][0], norm

    def rewritten(self) -> list[torch.Tensor]:
        """Returns the parameters that somebody else has written to since the last look."""
        made = self.count
        if self.is_broken or (made and self.written is None):
            return []
        written = self.written or [{}] * len(self.parameters)
        rows = zip(self.parameters, self.versions, written, strict=True)
        return [p for p, then, each in rows if _WRITES(p) > then[""] + made * each.get("", 0)]

    def updates(self, group: int) -> tuple[Update, ...]:
        """Returns those of a parameter group, oldest first; of the same settings in a row there is
        one mapping."""
        found: list[Update] = []
        last: tuple[Any, ...] | None = None
        settings: dict[str, Any] = {}
        for rows, norm in self._rows:
            if rows[group] is not last and not _are_alike(rows[group], last):
                last = rows[group]
                settings = dict(zip(self._names, last, strict=True))
            found.append(Update(settings, norm))
        return tuple(found)

    @property
    def is_sure(self) -> bool:
        """Whether the family's bounds count."""
        return self.foreign is None or self.foreign.is_proved

    @property
    def count(self) -> int:
        return len(self._rows)

    @property
    def norms(self) -> list[float]:
        """Of the gradients as they reached the optimizer, oldest first."""
        return [norm for _, norm in self._rows]

    @property
    def norms_are_finite(self) -> bool:
        return all(math.isfinite(norm) for _, norm in self._rows)

    def optimizer(self) -> Optimizer | None:
        return self._optimizer()


class UpdateWatch:
    """Called around every update that is really made, in the training's own thread.

    Attributes:
        normalisation: the same for running means and variances, which batches change.
        needs_norms: a family needs the norm of the gradients, and `clipped` is to be called.
        awaits_end: `end` is to be called after the update under way.
        times_anew: how often something of ours has changed the state.
    """

    def __init__(self, registry: Registry) -> None:
        self.normalisation = NormalisationWatch()
        self._registry = registry
        self._watched: ByIdentity[Optimizer, WatchedOptimizer] = ByIdentity()
        self.needs_norms = False
        self.awaits_end = False
        self.times_anew = 0
        # Parameters that somebody else wrote to, in the window that the last look ended, and in
        # the one before.
        self._rewritten: IdentitySet[torch.Tensor] = IdentitySet()
        self._rewritten_before: IdentitySet[torch.Tensor] = IdentitySet()
        self._clipped_at: tuple[int, int] | None = None
        self._usual_norms: ByIdentity[Optimizer, float] = ByIdentity()
        self._foreign: ByIdentity[Optimizer, ForeignOptimizer] = ByIdentity()

    def begin_anew(self) -> None:
        """Something else than updates has changed the state: nothing is known until `check`."""
        self._watched.clear()
        self._rewritten, self._rewritten_before = IdentitySet(), IdentitySet()
        self.times_anew += 1
        self.normalisation.begin_anew()

    def rewritten(self) -> list[torch.Tensor]:
        """Returns the parameters that somebody else has just written to: since the last look, or
        right before it, and not in the window before that."""
        found = []
        late, before = self._rewritten, self._rewritten_before
        for watched in self.watched():
            if watched.count:
                found += [p for p in watched.rewritten() if p not in late]
            else:
                found += [p for p in watched.parameters if p in late and p not in before]
        return found

    def rewriting_is_known(self) -> None:
        """What was written since the last look has been told."""
        self._rewritten.update(p for one in self.watched() for p in one.rewritten())
        self._rewritten_before.update(self._rewritten)

    def checked(self) -> None:
        """The state as it is now is kept: from here on every update counts."""
        self.normalisation.checked()
        self._rewritten_before = self._rewritten
        self._rewritten = IdentitySet(p for one in self.watched() for p in one.rewritten())
        for optimizer, watched in self._watched.items():
            if watched.count:
                self._usual_norms[optimizer] = statistics.median(watched.norms)
        self._watched.clear()
        self._clipped_at = None
        self.needs_norms = False
        for optimizer in self._registry.optimizers.values():
            family, foreign = family_of(optimizer), None
            if family is None:
                foreign = self._foreign.get(optimizer)
                if foreign is None:
                    foreign = self._foreign[optimizer] = ForeignOptimizer(optimizer)
                family = foreign.family
            if family is None or not _is_plain(optimizer):
                continue
            self._watched[optimizer] = WatchedOptimizer(optimizer, family, foreign)
            self.needs_norms = self.needs_norms or family.needs_norms

    def watched(self) -> list[WatchedOptimizer]:
        return [watched for _, watched in self._watched.items()]

    def saw_wild_gradients(self) -> bool:
        """Whether one since the last look was far beyond those before: it is in the moments, and
        stays there for long."""
        return any(
            max(watched.norms, default=0.0) > WILD * self._usual_norms.get(optimizer, math.inf)
            for optimizer, watched in self._watched.items()
        )

    def clipped(self, parameters: Sequence[torch.Tensor]) -> None:
        """The script has clipped its gradients, which gave their norm."""
        self._clipped_at = _gradient_versions(parameters)

    def update_begins(self, optimizer: Optimizer, norm: float | None, clips_at: float) -> None:
        """An update is about to be made.

        Args:
            norm: of all its gradients; None if it is not known, NaN if `norm_is` tells it.
            clips_at: the bound of the script's own clipping; infinite if there was none.
        """
        watched = self._watched.get(optimizer)
        if watched is None:
            return
        largest = math.inf if norm is None else min(norm, clips_at) * ROUNDED
        if (
            watched.family.needs_norms
            and math.isfinite(clips_at)
            and self._clipped_at != _gradient_versions(watched.parameters)
        ):
            largest = math.inf  # what the script did behind its clipping, the norm does not know
        self.awaits_end = watched.update_begins(optimizer, largest)

    def norm_is(self, optimizer: Optimizer, norm: float, clips_at: float) -> None:
        """Of the newest update; see `begin`."""
        watched = self._watched.get(optimizer)
        if watched is not None:
            watched.norm_is(min(norm, clips_at) * ROUNDED)

    def update_ended(self, optimizer: Optimizer) -> None:
        """It was made."""
        self.awaits_end = False
        watched = self._watched.get(optimizer)
        if watched is not None:
            watched.update_ended(optimizer)

    def failed(self, optimizer: Optimizer) -> None:
        """It raised half-way."""
        watched = self._watched.get(optimizer)
        if watched is not None:
            watched.is_broken = True


def _are_alike(settings: tuple[Any, ...], others: tuple[Any, ...] | None) -> bool:
    """Whether they are the same objects: equal numbers may be of other types, tensors change."""
    return others is not None and all(map(operator.is_, settings, others))


def _keys(family: OptimizerFamily, optimizer: Optimizer) -> tuple[str, ...]:
    groups = optimizer.param_groups
    return tuple(key for key in family.keys if all(key in group for group in groups))


def _is_plain(optimizer: Optimizer) -> bool:
    """Whether all parameters are ordinary tensors, of which this process has the whole, and no
    hook of the script's changes the rate behind our back."""
    if getattr(optimizer, "_optimizer_step_pre_hooks", None):
        return False
    kinds = (torch.Tensor, torch.nn.Parameter)
    return all(
        type(p) in kinds and not p.is_inference() and not (p.device.type == "cpu" and p.is_shared())
        for p in optimizer_parameters(optimizer)
    )


_WRITES: Callable[[torch.Tensor], int] = operator.attrgetter("_version")


def _versions(optimizer: Optimizer, parameter: torch.Tensor) -> Versions:
    versions = {"": _WRITES(parameter)}
    for key, value in optimizer.state.get(parameter, {}).items():
        if isinstance(value, torch.Tensor):
            versions[key] = _WRITES(value)
    return versions


def _gradient_versions(parameters: Sequence[torch.Tensor]) -> tuple[int, int]:
    gradients = [gradient for p in parameters if (gradient := p.grad) is not None]
    return len(gradients), sum(map(_WRITES, gradients))
