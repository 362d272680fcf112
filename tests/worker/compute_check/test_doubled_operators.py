from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from supervisor.worker.compute_check.doubled_operators import DoubledOperators
from tests.worker.compute_check.sick_machine import SickMachine, flip


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=True)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.layer(self.table(tokens), is_causal=True, src_mask=torch.ones(6, 6).triu(1) > 0)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(5, 8, num_layers=2, dropout=0.3)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.lstm(values)[0]


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Dropout2d(),
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "attention": (Attention, lambda: torch.randint(0, 11, (4, 6))),
    "recurrent": (Recurrent, lambda: torch.randn(7, 3, 5)),
    "convolutional": (convolutional, lambda: torch.randn(2, 3, 12, 12)),
}


def trained(
    make: Callable[[], nn.Module],
    batch: Callable[[], torch.Tensor],
    operators: DoubledOperators | None,
    dtype: torch.dtype,
) -> list[torch.Tensor]:
    torch.manual_seed(3)
    model, data = make(), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype, enabled=dtype is not torch.float32):
            if operators is None:
                model(data).square().mean().backward()
            else:
                with operators:
                    output = model(data)
                loss = output.square().mean()
                with operators:
                    loss.backward()
        optimizer.step()
    return [*model.state_dict().values(), torch.get_rng_state()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MODELS)
def test_a_training_that_is_calculated_twice_is_the_same_to_the_bit(
    name: str, dtype: torch.dtype
) -> None:
    make, batch = MODELS[name]
    plain = trained(make, batch, None, dtype)
    operators = DoubledOperators()
    doubled = trained(make, batch, operators, dtype)
    assert operators.error is None
    assert operators.counts.calls > 30
    assert not operators.odd
    assert not operators.counts.varying
    for one, other in zip(plain, doubled, strict=True):
        assert torch.equal(one, other)


def layer(operators: DoubledOperators, machine: SickMachine | None) -> torch.Tensor:
    torch.manual_seed(5)
    model, data = nn.Linear(6, 4), torch.randn(3, 6)
    if machine is None:
        with operators:
            return model(data).detach()
    with machine, operators:
        return model(data).detach()


def healthy() -> torch.Tensor:
    return layer(DoubledOperators(), None)


def test_a_wrong_result_is_replaced_by_what_the_repetitions_give() -> None:
    operators = DoubledOperators()
    machine = SickMachine(
        "aten.addmm.default", lambda call, result: flip(result, place=7) if call == 0 else None
    )
    assert torch.equal(layer(operators, machine), healthy())
    (odd,) = operators.odd
    assert odd.operator == "aten.addmm.default"
    assert odd.in_training
    assert odd.is_replaced
    assert int((odd.wrong != odd.right).sum()) == 1


def test_it_is_left_where_nothing_is_to_be_treated() -> None:
    is_treated = True
    operators = DoubledOperators(may_replace=lambda: is_treated)
    is_treated = False  # as of a rank that has come to be only watched
    machine = SickMachine(
        "aten.addmm.default", lambda call, result: flip(result) if call == 0 else None
    )
    assert not torch.equal(layer(operators, machine), healthy())
    assert operators.odd[0].in_training
    assert not operators.odd[0].is_replaced


def test_a_wrong_repetition_does_not_reach_the_training() -> None:
    operators = DoubledOperators()
    machine = SickMachine(
        "aten.addmm.default", lambda call, result: flip(result) if call == 1 else None
    )
    assert torch.equal(layer(operators, machine), healthy())
    assert not operators.odd[0].in_training


def test_a_result_that_is_written_in_place_is_put_back() -> None:
    def activated(machine: SickMachine | None, operators: DoubledOperators) -> torch.Tensor:
        torch.manual_seed(5)
        values = torch.randn(3, 6)
        if machine is None:
            return F.relu_(values)
        with machine, operators:
            returned = F.relu_(values)
        assert returned is values
        return values

    operators = DoubledOperators()
    machine = SickMachine(
        "aten.relu_.default", lambda call, result: flip(result, place=4) if call == 0 else None
    )
    right = activated(None, operators)
    assert torch.equal(activated(machine, operators), right)
    assert operators.odd[0].is_replaced


def test_a_wrong_copy_does_not_reach_the_training() -> None:
    operators = DoubledOperators()
    values = torch.arange(1.0, 7.0)
    machine = SickMachine(
        "aten.copy_.default", lambda call, result: flip(result) if call == 0 else None
    )
    with machine, operators:
        F.relu_(values)
    assert torch.equal(values, torch.arange(1.0, 7.0))
    assert [odd.in_training for odd in operators.odd] == [False]


def test_what_differs_by_rounding_alone_is_counted_only() -> None:
    operators = DoubledOperators()
    machine = SickMachine(
        "aten.addmm.default", lambda call, result: flip(result, bit=1) if call == 0 else None
    )
    layer(operators, machine)
    assert not operators.odd
    assert operators.counts.rounded == 1


def test_under_deterministic_algorithms_every_bit_counts() -> None:
    operators = DoubledOperators()
    machine = SickMachine(
        "aten.addmm.default", lambda call, result: flip(result, bit=1) if call == 0 else None
    )
    torch.use_deterministic_algorithms(True)
    try:
        result = layer(operators, machine)
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(result, healthy())
    assert len(operators.odd) == 1


def test_an_operator_that_never_gives_the_same_twice_is_not_accused() -> None:
    operators = DoubledOperators()
    machine = SickMachine("aten.addmm.default", lambda call, result: result.add_(1e-3 * (call % 5)))
    layer(operators, machine)
    assert not operators.odd
    assert operators.counts.varying == 1


def test_but_it_is_where_a_result_is_far_beyond_its_noise() -> None:
    operators = DoubledOperators()
    machine = SickMachine(
        "aten.addmm.default", lambda call, result: result.add_(1e-6 * call if call else 50.0)
    )
    assert torch.allclose(layer(operators, machine), healthy(), atol=1e-4)
    assert operators.odd[0].in_training


def test_memory_that_an_operator_leaves_as_it_found_it_is_no_result() -> None:
    torch.manual_seed(0)
    values = torch.randn(50, 3, 15).log_softmax(2).requires_grad_()
    targets = torch.randint(1, 15, (3, 10))
    for _ in range(10):
        operators = DoubledOperators()
        with operators:
            loss = F.ctc_loss(values, targets, (50, 43, 37), (10, 7, 5), reduction="sum")
        with operators:
            loss.backward()
        assert operators.counts.calls
        assert not operators.odd
        assert operators.error is None


def test_what_raises_in_the_training_raises_as_without() -> None:
    operators = DoubledOperators()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), operators:
        torch.randn(2, 3) @ torch.randn(2, 3)
    assert operators.error is None


def test_an_error_of_a_repetition_ends_the_check_alone() -> None:
    def fails(call: int, result: torch.Tensor) -> None:
        if call == 1:
            raise MemoryError("no more")

    operators = DoubledOperators()
    machine = SickMachine("aten.addmm.default", fails)
    assert torch.equal(layer(operators, machine), healthy())
    assert isinstance(operators.error, MemoryError)
    assert operators.counts.calls == 1
