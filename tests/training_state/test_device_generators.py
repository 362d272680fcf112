"""Generators of devices by seed and offset; the devices here are made of Python."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import supervisor.worker.random_state.random_states as random_states
from supervisor.training_state import device_generators
from supervisor.training_state.device_generators import device_states
from supervisor.training_state.draws import advance, between, joined, look
from supervisor.training_state.rng import RngState


class WholeState:
    """Tells its state as a whole, as torch's does; counts how often it was asked for one."""

    def __init__(self, seed: int = 1, offset: int = 0) -> None:
        self.seed, self.offset, self.asked = seed, offset, 0

    def get_state(self) -> torch.Tensor:
        self.asked += 1
        return torch.frombuffer(
            bytearray(struct.pack("<Qq", self.seed, self.offset)), dtype=torch.uint8
        )

    def set_state(self, state: torch.Tensor) -> None:
        self.seed, self.offset = struct.unpack("<Qq", state.numpy().tobytes())


class Philox(WholeState):
    def initial_seed(self) -> int:
        return self.seed

    def get_offset(self) -> int:
        return self.offset

    def set_offset(self, offset: int) -> None:
        self.offset = offset

    def clone_state(self) -> Philox:
        return type(self)(self.seed, self.offset)


class LaidOutOtherwise(Philox):
    """A later torch might."""

    def get_state(self) -> torch.Tensor:
        return super().get_state().flip(0)


Devices = Callable[..., tuple[WholeState, ...]]


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[Devices]:
    def put(*generators: WholeState) -> tuple[WholeState, ...]:
        device_generators._TOLD.clear()
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "default_generators", generators)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(generators))
        return generators

    yield put
    device_generators._TOLD.clear()


def test_a_state_is_told_without_asking_for_the_whole(devices: Devices) -> None:
    first, second = devices(Philox(2**63 + 5, 4), Philox(3, 2**40))

    told = [device_states() for _ in range(20)][-1]

    assert (first.asked, second.asked) == (0, 0)
    assert told == [g.get_state().numpy().tobytes() for g in (first, second)]
    assert (first.offset, second.offset) == (4, 2**40)  # none was drawn from or moved


@pytest.mark.parametrize("kind", [WholeState, LaidOutOtherwise])
def test_where_there_is_no_offset_the_whole_state_is_read(
    devices: Devices, kind: type[WholeState]
) -> None:
    (generator,) = devices(kind(7, 12))

    assert device_states() == [generator.get_state().numpy().tobytes()]


def test_nothing_is_asked_before_cuda_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "default_generators", (Philox(),))

    assert device_states() == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 9)), max_size=6))
def test_both_ways_tell_the_same_draws_and_lead_to_the_same_place(
    devices: Devices, moves: list[tuple[int, int]]
) -> None:
    found = []
    for kind in (Philox, WholeState):
        generators = devices(kind(5, 0), kind(6, 8))
        begin = RngState.capture()
        looks = [look()]
        for index, count in moves:
            generators[index].offset += 4 * count
            looks.append(look())
        drawn = b""
        for before, after in itertools.pairwise(looks):
            drawn = joined(drawn, between(before, after))
        RngState.restore(begin)
        advance(drawn)
        assert look() == looks[-1]
        found.append((drawn, [g.offset for g in generators], begin["cuda"]))

    assert found[0][:2] == found[1][:2]
    assert [torch.equal(a, b) for a, b in zip(found[0][2], found[1][2], strict=True)] == [True] * 2


def test_a_replay_finds_the_device_where_it_stood(devices: Devices) -> None:
    (generator,) = devices(Philox(9, 16))
    name, state = "c0", random_states._others_now()["c0"]
    behind = random_states._Behind(name)
    behind.put(state, 0, 1)
    generator.seed, generator.offset = 1, 0

    random_states._set_random(behind.encoded())

    assert (generator.seed, generator.offset) == (9, 16)
