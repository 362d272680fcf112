"""No update of torch's own optimizers lies beyond its bound, whatever the gradients are."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch
from torch import optim

from benchmarks.corpus.lion import Lion
from supervisor.worker.corruption.comparison import WEIGHT, Breach, breaches, reach
from supervisor.worker.corruption.families import candidate_for, family_of
from supervisor.worker.corruption.limits import Affine, Limits, Rounding, Update, UpdateLog
from tests.worker.corruption.gradient_courses import COURSES, SIZE, course


class DerivedAdamW(optim.AdamW):
    """A class of its own, as of another package."""


OPTIMIZERS: dict[str, Callable[[list[torch.Tensor]], optim.Optimizer]] = {
    "Adam": lambda p: optim.Adam(p, lr=1e-3),
    "Adam with L2": lambda p: optim.Adam(p, lr=1e-2, weight_decay=0.1),
    "Adam 0.5": lambda p: optim.Adam(p, lr=1e-3, betas=(0.5, 0.999)),
    "Adam 0": lambda p: optim.Adam(p, lr=1e-3, betas=(0.0, 0.99)),
    "Adam large eps": lambda p: optim.Adam(p, lr=1e-3, eps=1e-3),
    "AdamW": lambda p: optim.AdamW(p, lr=1e-3, weight_decay=0.1),
    "AdamW 0.95": lambda p: optim.AdamW(p, lr=3e-3, betas=(0.9, 0.95)),
    "AdamW fused": lambda p: optim.AdamW(p, lr=1e-3, fused=True),
    "AdamW foreach": lambda p: optim.AdamW(p, lr=1e-3, foreach=True),
    "AMSGrad": lambda p: optim.AdamW(p, lr=1e-3, amsgrad=True),
    "NAdam": lambda p: optim.NAdam(p, lr=2e-3),
    "NAdamW": lambda p: optim.NAdam(p, weight_decay=0.01, decoupled_weight_decay=True),
    "RAdam": lambda p: optim.RAdam(p, lr=1e-3),
    "Adagrad": lambda p: optim.Adagrad(p, lr=1e-2),
    "RMSprop": lambda p: optim.RMSprop(p, lr=1e-3),
    "RMSprop with momentum": lambda p: optim.RMSprop(p, lr=1e-3, momentum=0.9),
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "SGD with momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "SGD Nesterov": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "SGD dampened": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.9, weight_decay=0.1),
    "Lion": lambda p: Lion(p, lr=1e-3),
    "Lion with decay": lambda p: Lion(p, lr=1e-2, betas=(0.95, 0.98), weight_decay=0.5),
    "AdamW derived": lambda p: DerivedAdamW(p, lr=1e-3, weight_decay=0.1),
}
HAS_MUON = hasattr(optim, "Muon")
if HAS_MUON:
    OPTIMIZERS |= {
        "Muon": lambda p: optim.Muon(p, lr=2e-2),
        "Muon for AdamW's rates": lambda p: optim.Muon(
            p, lr=1e-2, weight_decay=0.5, nesterov=False, adjust_lr_fn="match_rms_adamw"
        ),
    }


class Course:
    """One optimizer on one tensor, looked at every `every` updates."""

    def __init__(self, name: str, dtype: torch.dtype, every: int) -> None:
        self.every = every
        shape = (32, SIZE // 32) if name.startswith("Muon") else (SIZE,)
        self.parameter = torch.nn.Parameter((torch.randn(shape) * 0.05).to(dtype))
        self.optimizer = OPTIMIZERS[name]([self.parameter])
        family = family_of(self.optimizer) or candidate_for(self.optimizer)
        assert family is not None
        self.family = family
        self.windows = self.claimed = 0
        self.tightest = 0.0
        self._log: list[Update] = []
        self._look()

    def train(self, gradients: Iterable[torch.Tensor]) -> list[Breach]:
        found: list[Breach] = []
        for gradient in gradients:
            self.parameter.grad = gradient.to(self.parameter.dtype).view_as(self.parameter)
            norm = float(self.parameter.grad.float().norm())
            self.optimizer.step()
            group = self.optimizer.param_groups[0]
            self._log.append(Update({key: group.get(key) for key in self.family.keys}, norm))
            if len(self._log) == self.every:
                found += self._compare()
        return found

    def limits(self) -> Limits | None:
        rounding = Rounding.of(self.parameter.dtype)
        assert rounding is not None
        return self.family.limits(
            UpdateLog(
                updates=tuple(self._log),
                start=self._start,
                has_memory=len(self.then) > 1,
                rounding=rounding,
                shape=tuple(self.parameter.shape) if self.family.needs_shape else (),
            )
        )

    def now(self) -> dict[str, torch.Tensor]:
        state = self.optimizer.state.get(self.parameter, {})
        entries = {key: value.clone() for key, value in state.items() if _is_like_weight(value)}
        return {WEIGHT: self.parameter.detach().clone(), **entries}

    def _look(self) -> None:
        self.then = self.now()
        self._start = int(self.optimizer.state.get(self.parameter, {}).get("step", 0))
        self._log.clear()

    def _compare(self) -> list[Breach]:
        limits, now = self.limits(), self.now()
        self.windows += 1
        found: list[Breach] = []
        if limits is not None and now[WEIGHT].isfinite().all():
            found = breaches(self.then, now, limits)
            if limits.weight is not None and reach(self.then, limits) is not None:
                self.claimed += 1
                self._measure(limits, limits.weight, now)
        self._look()
        return found

    def _measure(self, limits: Limits, bound: Affine, now: dict[str, torch.Tensor]) -> None:
        limit = bound.constant + bound.of_weight * self.then[WEIGHT].float().abs()
        if limits.memory in self.then:
            limit = limit + bound.of_memory * self.then[limits.memory].float().abs()
        share = (now[WEIGHT].float() - self.then[WEIGHT].float()).abs() / limit
        self.tightest = max(self.tightest, float(share.nan_to_num(0).max()))


def _is_like_weight(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == SIZE


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_update_is_beyond_its_bound(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)

    for seed, kind in enumerate(COURSES):
        for every in (1, 23):
            run = Course(name, dtype, every)

            assert run.train(course(kind, 3 * every if every > 1 else 20, seed)) == [], kind


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_bound_is_reached_to_a_third_by_some_gradients(name: str) -> None:
    torch.manual_seed(0)
    tightest = 0.0

    for seed, kind in enumerate(COURSES):
        run = Course(name, torch.float32, 10)
        run.train(course(kind, 60, seed))
        tightest = max(tightest, run.tightest)

    # RAdam's rectification is left out of its bound, and is small for many updates.
    least = 0.02 if name == "RAdam" else 0.33
    assert least < tightest <= 1.0


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_weight_beyond_its_bound_is_found(name: str) -> None:
    torch.manual_seed(0)
    run = Course(name, torch.float32, 1000)
    run.train(course("noise", 30, 0))
    run._look()
    run.train(course("noise", 10, 1))
    now = run.now()
    now[WEIGHT].view(-1)[7] = 1e6
    limits = run.limits()
    assert limits is not None

    found = breaches(run.then, now, limits)

    assert [(breach.rule, breach.places, breach.count) for breach in found] == [("moved", (7,), 1)]
    assert found[0].bound < 100


@pytest.mark.parametrize("name", ["Adam", "AdamW", "AMSGrad", "NAdam", "RAdam", "RMSprop"])
def test_a_second_moment_that_fell_too_fast_is_found(name: str) -> None:
    torch.manual_seed(0)
    run = Course(name, torch.float32, 1000)
    run.train(course("noise", 30, 0))
    run._look()
    run.train(course("noise", 5, 1))
    now = run.now()
    entry = "square_avg" if name == "RMSprop" else "exp_avg_sq"
    now[entry][3] *= 1e-9
    limits = run.limits()
    assert limits is not None

    rules = {(breach.entry, breach.rule) for breach in breaches(run.then, now, limits)}

    assert (entry, "fell") in rules


def test_a_first_moment_that_its_second_one_forbids_is_found() -> None:
    run = Course("AdamW", torch.float32, 1000)
    run.train(course("noise", 30, 0))
    now = run.now()
    now["exp_avg"][5] = 1e4
    limits = run.limits()
    assert limits is not None

    found = breaches(run.then, now, limits)

    assert [(breach.entry, breach.rule, breach.places) for breach in found] == [
        ("exp_avg", "pair", (5,))
    ]


@pytest.mark.skipif(not HAS_MUON, reason="this torch has no Muon")
@pytest.mark.parametrize("shape", [(16, 16), (64, 32), (8, 200), (128, 128)], ids=str)
@pytest.mark.parametrize("iterations", [1, 5, 20])
def test_no_update_of_muon_has_a_singular_value_beyond_its_bound(
    shape: tuple[int, int], iterations: int
) -> None:
    gen = torch.Generator().manual_seed(0)
    rows, columns = shape
    noise = torch.randn(shape, generator=gen)
    matrices = {
        "noise": noise,
        "rank 1": noise[:, :1] @ noise[:1],
        "rank 2": noise[:, :2] @ noise[:2],
        "of many sizes": noise * 10.0 ** (20 * torch.rand(shape, generator=gen) - 15),
        "diagonal": torch.eye(rows, columns),
        "equal": torch.ones(shape),
    }
    for name, matrix in matrices.items():
        weight = torch.nn.Parameter(torch.zeros(shape))
        weight.grad = matrix
        settings = {"momentum": 0.0, "nesterov": False, "weight_decay": 0.0}
        optim.Muon([weight], lr=1.0, ns_steps=iterations, **settings).step()  # type: ignore[arg-type]
        moved = weight.detach() / max(1.0, rows / columns) ** 0.5
        largest = float(torch.linalg.matrix_norm(moved, 2))
        assert 0.2 < largest < 1.2264, name


def test_after_foreign_moments_no_bound_of_the_weight_is_claimed() -> None:
    run = Course("AdamW", torch.float32, 1000)
    run.train(course("noise", 30, 0))
    run.optimizer.state[run.parameter]["exp_avg_sq"].zero_()  # as a script may do
    run._look()
    run.train(course("below all squares", 5, 0))
    limits = run.limits()
    assert limits is not None

    found = breaches(run.then, run.now(), limits)

    assert "moved" not in {breach.rule for breach in found}


def test_betas_without_a_constant_give_no_bound() -> None:
    parameter = torch.nn.Parameter(torch.zeros(SIZE))
    family = family_of(optim.Adam([parameter], betas=(0.99, 0.9)))
    rounding = Rounding.of(torch.float32)
    assert family is not None
    assert rounding is not None
    update = Update({"lr": 1e-3, "betas": (0.99, 0.9), "eps": 1e-8})

    limits = family.limits(
        UpdateLog(updates=(update,), start=0, has_memory=True, rounding=rounding)
    )

    assert limits is not None
    assert limits.weight is None
    assert limits.pair is None


def test_a_momentum_of_lion_beyond_its_gradients_is_found() -> None:
    run = Course("Lion", torch.float32, 1000)
    run.train(course("noise", 30, 0))
    now = run.now()
    now["exp_avg"][5] = 1e4
    limits = run.limits()
    assert limits is not None

    found = breaches(run.then, now, limits)

    assert [(breach.entry, breach.rule, breach.places) for breach in found] == [
        ("exp_avg", "memory", (5,))
    ]


def test_only_classes_of_torch_itself_are_known_beforehand() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(3))]

    assert family_of(DerivedAdamW(parameters)) is None
    assert candidate_for(DerivedAdamW(parameters)) is not None
    assert family_of(Lion(parameters, 1e-3)) is None
    assert candidate_for(Lion(parameters, 1e-3)) is not None
    assert family_of(optim.LBFGS(parameters)) is None
    assert candidate_for(optim.ASGD(parameters)) is None
    assert family_of(optim.RMSprop(parameters)) is not None
    scheduled = optim.AdamW(parameters)
    optim.lr_scheduler.ConstantLR(scheduled)
    assert family_of(scheduled) is not None
    scheduled.step = lambda: None  # type: ignore[assignment,method-assign]
    assert family_of(scheduled) is None
