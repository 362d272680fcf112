"""Adagrad, RMSprop, Adadelta, Rprop: a gradient over what is known of earlier ones."""

from __future__ import annotations

import math

from supervisor.training_state.bounds.averages import Averages, floor_of
from supervisor.training_state.bounds.limits import Affine, Floor, Limits, Root
from supervisor.training_state.bounds.optimizer_family import OptimizerFamily, drift
from supervisor.training_state.bounds.update_log import UpdateLog


class Adagrad(OptimizerFamily):
    """The root of the sum is never below the newest gradient."""

    keys = ("lr", "eps", "lr_decay", "weight_decay")

    def limits(self, log: UpdateLog) -> Limits | None:
        floors = {"sum": Floor(1.0)}
        steps: list[tuple[Affine, float]] = []
        for update in log.updates:
            rate, eps = update.number("lr"), update.number("eps")
            if rate < 0.0 or update.number("lr_decay") < 0.0 or eps < log.rounding.smallest:
                return Limits(weight=None, floors=floors, positive=frozenset(floors))
            ratio = 1 + math.sqrt(3 * log.rounding.tiny) / eps
            steps.append((Affine(rate * ratio), 0.0))
        return Limits(weight=drift(steps, log.rounding), floors=floors, positive=frozenset(floors))


class RMSprop(OptimizerFamily):
    """Not where it is centred: a variance can vanish."""

    keys = ("lr", "alpha", "eps", "momentum", "centered", "weight_decay")

    def limits(self, log: UpdateLog) -> Limits | None:
        averages = [Averages.of(0.0, u.number("alpha"), log.rounding) for u in log.updates]
        known = [one for one in averages if one is not None]
        if not known or len(known) < len(averages):
            return None
        floors = {"square_avg": floor_of((one.keep2 for one in known), known[0].lost)}
        alone = Limits(weight=None, floors=floors, positive=frozenset(floors))
        memory = Affine(of_memory=1.0) if log.has_memory else Affine()
        steps: list[tuple[Affine, float]] = []
        for update, average in zip(log.updates, known, strict=True):
            rate, eps, momentum = (update.number(key) for key in ("lr", "eps", "momentum"))
            if update.is_on("centered") or rate < 0.0 or eps < log.rounding.smallest:
                return alone
            if momentum < 0.0:
                return alone
            newest = Affine(average.gradient_over_root(eps))
            grown = 1 + 4 * log.rounding.unit
            memory = memory.times(momentum).plus(newest).times(grown) if momentum else newest
            memory = memory.plus(Affine(4 * log.rounding.tiny))
            steps.append((memory.times(rate), 0.0))
        has_buffer = all(update.number("momentum") > 0 for update in log.updates)
        return Limits(
            weight=drift(steps, log.rounding),
            floors=floors,
            positive=frozenset(floors),
            memory="momentum_buffer",
            memory_limit=memory if has_buffer else None,
        )


class Adadelta(OptimizerFamily):
    """How far it went lies in its own second average, as that is at the second look."""

    keys = ("lr", "rho", "eps", "weight_decay")

    def limits(self, log: UpdateLog) -> Limits | None:
        averages = [Averages.of(0.0, u.number("rho"), log.rounding) for u in log.updates]
        known = [one for one in averages if one is not None]
        if not known or len(known) < len(averages):
            return None
        floor = floor_of((one.keep2 for one in known), known[0].lost)
        floors = {"square_avg": floor, "acc_delta": floor}
        rate = max(update.number("lr") for update in log.updates)
        least = min(one.take2 for one in known) * floor.factor
        weight, root = None, None
        if least > 0.0 and min(update.number("lr") for update in log.updates) >= 0.0:
            factor = rate * math.sqrt(len(known) / least)
            lost = factor * math.sqrt(floor.slack + known[0].lost)
            weight = drift([(Affine(), 0.0)] * len(known), log.rounding).plus(Affine(lost))
            root = Root("acc_delta", factor * (1 + 0.05))
        return Limits(weight=weight, root=root, floors=floors, positive=frozenset(floors))


class Rprop(OptimizerFamily):
    """Its own steps, which grow by a factor at most."""

    keys = ("lr", "etas", "step_sizes")

    def limits(self, log: UpdateLog) -> Limits | None:
        step = Affine(of_memory=1.0) if log.has_memory else Affine(log.updates[0].number("lr"))
        steps: list[tuple[Affine, float]] = []
        for update in log.updates:
            growth = float(update.settings["etas"][1])
            step = step.times(max(1.0, growth) * (1 + 2 * log.rounding.unit))
            step = step.plus(Affine(float(update.settings["step_sizes"][0])))
            steps.append((step, 0.0))
        return Limits(weight=drift(steps, log.rounding), memory="step_size")
