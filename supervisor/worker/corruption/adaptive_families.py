"""Optimizers that divide a gradient by what they know of each element."""

from __future__ import annotations

import math
from abc import abstractmethod

from supervisor.worker.corruption.limits import (
    Affine,
    Averages,
    Floor,
    Limits,
    Pair,
    Update,
    UpdateLog,
    floor_of,
)
from supervisor.worker.corruption.optimizer_family import (
    Explained,
    OptimizerFamily,
    SeenUpdate,
    decoupled,
    drift,
    explained_by_adam,
)

SQUARES = "exp_avg_sq"
LARGEST = "max_exp_avg_sq"


class AdamFamily(OptimizerFamily):
    """docs/design/corruption.md derives what is used here."""

    keys: tuple[str, ...] = (
        "lr", "betas", "eps", "weight_decay", "decoupled_weight_decay", "amsgrad",
    )  # fmt: skip

    def limits(self, log: UpdateLog) -> Limits | None:
        averages = [Averages.of(*update.betas, log.rounding) for update in log.updates]
        known = [one for one in averages if one is not None]
        if len(known) < len(averages):
            return None
        distinct = {id(one): one for one in known}.values()  # mostly all have the same betas
        floor = floor_of((one.keep2 for one in known), max((a.lost for a in distinct), default=0.0))
        floors = {SQUARES: floor}
        if all(update.is_on("amsgrad") for update in log.updates):
            floors[LARGEST] = Floor(1.0)
        constant = max((one.root_constant() for one in distinct), default=math.inf)
        slack = max((one.root_slack(constant) for one in distinct), default=math.inf)
        if not math.isfinite(constant + slack):
            return Limits(weight=None, floors=floors, positive=frozenset(floors))
        pair = Pair("exp_avg", SQUARES, constant, slack)
        return Limits(
            weight=self._weight(log, known, pair),
            floors=floors,
            positive=frozenset(floors),
            pair=pair,
        )

    def _weight(self, log: UpdateLog, known: list[Averages], pair: Pair) -> Affine | None:
        steps: list[tuple[Affine, float]] = []
        settings: object = None
        rate = decay = 0.0
        for index, (update, averages) in enumerate(zip(log.updates, known, strict=True)):
            if update.settings is not settings:  # updates that were alike share them
                settings, rate = update.settings, update.number("lr")
                found = decoupled(update, is_on=self.is_decoupled(update))
                if found is None or update.number("eps") < log.rounding.smallest:
                    return None
                decay = found
            ratio = self.ratio(update, averages, pair, *log.counts(index))
            if ratio is None or not math.isfinite(ratio):
                return None
            steps.append((Affine(rate * ratio), decay))
        return drift(steps, log.rounding)

    def is_decoupled(self, update: Update) -> bool:
        return update.is_on("decoupled_weight_decay")

    @abstractmethod
    def ratio(
        self, update: Update, averages: Averages, pair: Pair, low: int, high: int
    ) -> float | None:
        """Returns how many learning rates an update moves an element at most.

        Args:
            low, high: which update of the tensor it was, from 1, at least and at most.
        """


class Adam(AdamFamily):
    """With AdamW and AMSGrad, whose maximum only makes the root larger."""

    def ratio(
        self, update: Update, averages: Averages, pair: Pair, low: int, high: int
    ) -> float | None:
        beta1, beta2 = update.betas
        root = math.sqrt(1 - beta2**high)
        return (pair.constant * root + pair.slack / update.number("eps")) / (1 - beta1**low)


class ForeignAdam(Adam):
    """Adam or AdamW of another package, proved by its updates: a bound for either kind of decay."""

    keys = ("lr", "betas", "eps", "weight_decay")

    def is_decoupled(self, update: Update) -> bool:
        return True

    def explains(self, seen: SeenUpdate) -> Explained:
        return explained_by_adam(seen)


class RAdam(AdamFamily):
    """Only where it is rectified; before, it is a gradient descent with momentum."""

    def ratio(
        self, update: Update, averages: Averages, pair: Pair, low: int, high: int
    ) -> float | None:
        beta1, beta2 = update.betas
        length = 2 / (1 - beta2) - 1 - 2 * low * beta2**low / (1 - beta2**low)
        if not length > _RECTIFIED:
            return None
        root = math.sqrt(1 - beta2**high)
        return root * (pair.constant + pair.slack / update.number("eps")) / (1 - beta1**low)


class NAdam(AdamFamily):
    """The gradient itself takes part, too."""

    keys = (*AdamFamily.keys, "momentum_decay")

    def ratio(
        self, update: Update, averages: Averages, pair: Pair, low: int, high: int
    ) -> float | None:
        (beta1, beta2), eps = update.betas, update.number("eps")
        decay = update.number("momentum_decay")
        if decay < 0.0:
            return None

        def mu(count: int) -> float:
            return beta1 * (1 - 0.5 * math.pow(0.96, count * decay))

        product = math.prod(mu(count) for count in range(max(1, low - _MANY), low + 1))
        following = mu(high + 1)
        taken = (1 - mu(low)) / (1 - product)
        kept = following / (1 - product * following)
        root = math.sqrt(1 - beta2**high)
        return taken * root * averages.gradient_over_root(eps) + kept * (
            root * pair.constant + pair.slack / eps
        )


_MANY = 20
"""Factors, each below 1, after which more of them are left out of a product: it only grows."""

_RECTIFIED = 5.01
"""RAdam's own line is 5; where it is nearly met, rounding decides."""


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
