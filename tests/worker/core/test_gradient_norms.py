"""The norm of gradients has the bits of torch's own clipping, whatever is among them."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode

from supervisor.worker.core.gradient_norms import (
    FEWEST,
    SMALL,
    TOGETHER,
    gradient_norm,
    norm_of_gradients,
)


def with_gradients(shapes: Sequence[tuple[int, ...]]) -> list[torch.Tensor]:
    made = [torch.randn(shape) for shape in shapes]
    return [g * 10.0 ** (place % 9 - 4) for place, g in enumerate(made)]


def as_torch_clips(gradients: list[torch.Tensor]) -> torch.Tensor:
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients, 2)))  # type: ignore[arg-type]


def is_that_of_torch(gradients: list[torch.Tensor]) -> bool:
    norm = norm_of_gradients(gradients)
    return isinstance(norm, torch.Tensor) and torch.equal(norm, as_torch_clips(gradients))


@pytest.mark.parametrize("size", [*range(1, 70), 511, 1000, SMALL - 1, SMALL, SMALL + 1])
def test_gradients_of_one_shape_have_the_norm_that_torch_gives_each(size: int) -> None:
    torch.manual_seed(size)

    assert is_that_of_torch(with_gradients([(size,)] * (TOGETHER // size % 300 + FEWEST + 1)))


@pytest.mark.parametrize("count", [2, 26, 512, 700])
def test_gradients_of_many_shapes_have_the_norm_that_torch_gives(count: int) -> None:
    torch.manual_seed(count)
    draw = random.Random(count)
    kinds = [(4, 4), (4,), (7, 3), (1,), (16, 3, 3, 3), (SMALL,), (50, 60), (9,)]

    for _ in range(3):  # others of the same number are as right
        assert is_that_of_torch(with_gradients([draw.choice(kinds) for _ in range(count)]))


def test_gradients_in_another_order_of_memory_have_the_norm_that_torch_gives() -> None:
    torch.manual_seed(0)
    plain = with_gradients([(9, 5)] * 8)
    turned = [gradient.t() for gradient in with_gradients([(5, 9)] * 8)]

    for gradients in (plain, turned, plain[:4] + turned[:4]):
        assert is_that_of_torch(gradients)


def test_gradients_that_become_large_are_not_copied() -> None:
    torch.manual_seed(0)
    norm_of_gradients(with_gradients([(4,)] * 8))

    with _Counter() as counter:
        norm_of_gradients([torch.ones(SMALL + 1)] * 8)

    assert counter.largest == SMALL + 1


class _Counter(TorchDispatchMode):
    """Counts operators, and the numbers of the largest tensor that one gave."""

    def __init__(self) -> None:
        super().__init__()
        self.operators = self.largest = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.operators += 1
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.largest = max(self.largest, result.numel())
        return result


def test_small_gradients_cost_a_few_operators_together() -> None:
    gradients = with_gradients([(4, 4), (4,)] * 250)
    norm_of_gradients(gradients)

    with _Counter() as counter:
        norm_of_gradients(gradients)

    assert counter.operators < 12


def test_half_gradients_among_others_of_their_shape_count() -> None:
    whole, half = torch.ones(8), torch.ones(8, dtype=torch.float16)

    for gradients in ([whole] * 7 + [half], [half] + [whole] * 7):
        assert float(norm_of_gradients(gradients) or 0.0) == pytest.approx(8.0)


def test_the_norm_counts_gradients_that_are_spread_over_ranks_beside_others() -> None:
    """A part of a model's layers in tensor parallel."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        plain = torch.nn.Parameter(torch.zeros(2))
        plain.grad = torch.tensor([3.0, 0.0])
        mesh = dist.init_device_mesh("cpu", (1,))
        spread = torch.nn.Parameter(distribute_tensor(torch.zeros(2), mesh))
        spread.grad = distribute_tensor(torch.tensor([0.0, 4.0]), mesh)

        assert gradient_norm([plain, spread]) == pytest.approx(5.0)
        assert gradient_norm([spread]) == pytest.approx(4.0)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_the_norm_of_half_gradients_is_summed_up_where_none_overflows(kind: torch.dtype) -> None:
    half = torch.nn.Parameter(torch.zeros(4, dtype=kind))
    half.grad = torch.full((4,), 60_000.0, dtype=kind)

    assert gradient_norm([half]) == pytest.approx(2.0 * float(half.grad[0]))


@pytest.mark.parametrize(
    "other",
    [
        torch.eye(3).to_sparse(),
        torch.ones(3, dtype=torch.float64),
        torch.ones(3, dtype=torch.complex64),
    ],
    ids=["sparse", "double", "complex"],
)
def test_the_norm_of_small_gradients_counts_those_of_other_kinds(other: torch.Tensor) -> None:
    plain = torch.nn.Parameter(torch.zeros(6))
    plain.grad = torch.ones(6)
    beside = torch.nn.Parameter(torch.zeros(other.shape, dtype=other.dtype))
    beside.grad = other

    for parameters in ([plain, beside], [beside, plain]):
        assert gradient_norm(parameters) == pytest.approx(3.0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_the_norm_of_small_gradients_is_not_finite_where_one_is_not(value: float) -> None:
    parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in range(3)]
    for parameter in parameters:
        parameter.grad = torch.ones(2)
    parameters[1].grad[0] = value  # type: ignore[index]

    assert not math.isfinite(gradient_norm(parameters) or 0.0)
