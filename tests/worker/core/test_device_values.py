"""Numbers that come from a device: together, or later."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from supervisor.worker.core import device_values
from supervisor.worker.core.device_values import (
    READS,
    DeviceValues,
    LateRow,
    is_late,
    is_memory_pinned,
    treat_cpu_as_device,
)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    treat_cpu_as_device(False)
    device_values._PINS[0] = True


def number(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def test_a_row_that_is_read_in_its_own_step_waits_and_later_it_holds() -> None:
    row, waits, holds = LateRow([number(1.5), number(2.5)]), READS.waits, READS.holds

    assert row.read() == [1.5, 2.5]
    row.becomes_older()
    assert row.read() == [1.5, 2.5]

    assert (READS.waits - waits, READS.holds - holds) == (1, 1)


def test_what_is_sent_ahead_comes_with_the_scripts_own_read() -> None:
    values, found, waits = DeviceValues(), [], READS.waits
    values.put("loss", number(1.0), found.append)
    values.put("loss", number(0.5), found.append, add=True)
    values.put("scale", number(1024.0), found.append)

    values.send()
    values.read()

    assert found == [1.5, 1024.0]
    assert waits == READS.waits
    assert not values.sent


def test_what_is_put_after_it_is_waited_for() -> None:
    values, found, waits = DeviceValues(), [], READS.waits
    values.put("loss", number(1.0), found.append)
    values.send()
    values.put("norm", number(2.0), found.append)

    values.read()

    assert found == [1.0, 2.0]
    assert READS.waits == waits + 1


def test_without_pinned_memory_the_copy_goes_to_ordinary_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[object] = []
    empty = torch.empty

    def refuse(*size: int, pin_memory: bool = False, **more: object) -> torch.Tensor:
        asked.append(pin_memory)
        if pin_memory:
            raise RuntimeError("no pinned memory")
        return empty(*size, **more)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(torch, "empty", refuse)

    rows = [device_values._host_row(3), device_values._host_row(3)]

    assert [len(row) for row in rows] == [3, 3]
    assert asked == [True, False, False]
    assert not is_memory_pinned()


def test_only_plain_tensors_of_devices_are_late() -> None:
    class Spread(torch.Tensor):
        """As one that several ranks hold: its read is a collective."""

    plain = torch.ones(1)
    assert not is_late(plain)
    treat_cpu_as_device(True)

    assert is_late(plain)
    assert is_late(torch.nn.Parameter(plain))
    assert not is_late(plain.as_subclass(Spread))
    assert not is_late(1.0)
