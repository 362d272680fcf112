"""Adamax: a first moment over a maximum."""

from __future__ import annotations

from supervisor.training_state.bounds.averages import Averages, floor_of
from supervisor.training_state.bounds.limits import Affine, Limits, Pair
from supervisor.training_state.bounds.optimizer_family import OptimizerFamily, drift
from supervisor.training_state.bounds.update_log import UpdateLog


class Adamax(OptimizerFamily):
    """The maximum shrinks by `beta2` an update at most, so ``|m|`` is bounded by a multiple."""

    keys = ("lr", "betas", "eps", "weight_decay")

    def limits(self, log: UpdateLog) -> Limits | None:
        averages = [Averages.of(*update.betas, log.rounding) for update in log.updates]
        known = [one for one in averages if one is not None]
        if not known or len(known) < len(averages):
            return None
        floors = {"exp_inf": floor_of((one.keep2 for one in known), known[0].lost)}
        alone = Limits(weight=None, floors=floors, positive=frozenset(floors))
        if any(one.keep1 >= one.keep2 for one in known):
            return alone
        constant = max(one.take1 / (1 - one.keep1 / one.keep2) for one in known)
        slack = max((constant + 1) * one.lost / (1 - one.keep1) for one in known)
        steps: list[tuple[Affine, float]] = []
        for index, update in enumerate(log.updates):
            beta1, _ = update.betas
            eps, rate = update.number("eps"), update.number("lr")
            if eps < log.rounding.smallest or rate < 0.0:
                return alone
            correction = 1 - beta1 ** log.counts(index)[0]
            steps.append((Affine(rate * (constant + 2 * slack / eps) / correction), 0.0))
        return Limits(
            weight=drift(steps, log.rounding),
            floors=floors,
            positive=frozenset(floors),
            pair=Pair("exp_avg", "exp_inf", constant, slack, is_root=False),
        )
