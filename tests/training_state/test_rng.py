"""The state of torch's CPU generator as bytes in memory."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from supervisor.training_state import rng as generator_memory
from supervisor.training_state.rng import RngState, generator_window, whole_state


def draw() -> list[float]:
    return [random.random(), random.gauss(0, 1), float(np.random.randn()), torch.rand(()).item()]


def test_all_generators_repeat_after_a_restore_from_disk(tmp_path: Path) -> None:
    random.gauss(0, 1)  # leaves a second value waiting, in Python and in NumPy
    np.random.randn()
    torch.save(RngState.capture(), tmp_path / "rng.pt")
    drawn = draw()
    draw()

    RngState.restore(torch.load(tmp_path / "rng.pt", weights_only=True))

    assert draw() == drawn


def test_capturing_draws_nothing() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)

    RngState.capture()

    assert torch.equal(torch.rand(2), expected)


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the window is for Linux alone")

DRAWS = {
    "uniform": lambda g, n: torch.rand(n, generator=g),
    "normal": lambda g, n: torch.randn(n, generator=g),
    "normal in double precision": lambda g, n: torch.randn(n, generator=g, dtype=torch.float64),
    "order": lambda g, n: torch.randperm(n, generator=g),
    "coins": lambda g, n: torch.empty(n).bernoulli_(0.3, generator=g),
}


@given(
    seed=st.integers(0, 2**63),
    drawn=st.lists(st.tuples(st.sampled_from(sorted(DRAWS)), st.integers(1, 700)), max_size=5),
)
def test_the_bytes_give_the_state_that_torch_gives(seed: int, drawn: list[tuple[str, int]]) -> None:
    generator = torch.Generator()
    generator.manual_seed(seed)
    window = generator_window(generator)
    assert window is not None, "this torch lays its generator out in another way"

    for name, count in drawn:
        DRAWS[name](generator, count)

    assert torch.equal(whole_state(bytes(window)), generator.get_state())


def test_a_state_put_back_draws_the_same_numbers() -> None:
    window = generator_window()
    assert window is not None
    torch.manual_seed(3)
    torch.randn(3)
    kept = bytes(window)
    expected = torch.randn(5)

    torch.manual_seed(4)
    torch.set_rng_state(whole_state(kept))

    assert torch.equal(torch.randn(5), expected)


def test_the_window_follows_when_the_state_is_set() -> None:
    window = generator_window()
    assert window is not None
    torch.manual_seed(3)
    kept = torch.get_rng_state()
    torch.rand(2000)

    torch.set_rng_state(kept)

    assert torch.equal(whole_state(bytes(window)), kept)


def test_the_script_s_generator_is_not_drawn_from() -> None:
    before = torch.get_rng_state()

    generator_window()

    assert torch.equal(torch.get_rng_state(), before)


def test_another_layout_is_no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator_memory, "_HEAD_BYTES", generator_memory._HEAD_BYTES + 8)

    assert generator_window() is None


def test_what_is_no_address_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator_memory, "_POINTER_OFFSET", 0)  # the reference count

    assert generator_window() is None
