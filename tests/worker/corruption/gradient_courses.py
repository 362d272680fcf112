"""Courses of gradients, random and adversarial ones, for bounds that must hold on all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

SIZE = 256


def _random(gen: torch.Generator) -> torch.Tensor:
    return torch.randn(SIZE, generator=gen)


def _of_many_sizes(gen: torch.Generator) -> torch.Tensor:
    return _random(gen) * 10.0 ** (torch.rand(SIZE, generator=gen) * 30 - 22)


def _rare(gen: torch.Generator) -> torch.Tensor:
    return _random(gen) * (torch.rand(SIZE, generator=gen) < 0.02)


COURSES: dict[str, Callable[[torch.Tensor, int, torch.Generator], torch.Tensor]] = {
    "noise": lambda first, step, gen: _random(gen),
    "constant": lambda first, step, gen: first,
    "alternating": lambda first, step, gen: first * (-1) ** step,
    "worst for Cauchy-Schwarz": lambda first, step, gen: first * 1e-20 * 1.11**step,
    "exploding": lambda first, step, gen: first * 1e-15 * 1.3 ** (step % 150),
    "vanishing": lambda first, step, gen: first * 0.8**step,
    "below all squares": lambda first, step, gen: _random(gen) * 1e-24,
    "of many sizes": lambda first, step, gen: _of_many_sizes(gen),
    "rare": lambda first, step, gen: _rare(gen),
    "of one element": lambda first, step, gen: first * (torch.arange(SIZE) == 0),
    "late": lambda first, step, gen: first * float(step >= 30),
}


def course(name: str, steps: int, seed: int) -> Iterator[torch.Tensor]:
    gen = torch.Generator().manual_seed(seed)
    first = _random(gen)
    for step in range(steps):
        yield COURSES[name](first, step, gen)
