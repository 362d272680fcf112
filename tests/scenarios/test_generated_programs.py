"""Random small programs, killed at random places: what is called exact is exact.

`python -m benchmarks.generated` does the same with thousands, and shrinks one that goes wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from benchmarks.generated.__main__ import recipe_of
from benchmarks.generated.program import Recipe
from benchmarks.generated.trial import try_recipe
from benchmarks.generated.warm_client import WarmClient

ACCUMULATION = ("step left out by chance", "accumulation")
WENT_WRONG = {
    "random states of two forwards in a row": Recipe(
        loop="list of batches", model="layers left out by chance", parts=ACCUMULATION, seed=83
    ),
    "a hook on layers that are made at the first forward": Recipe(
        model="lazy layers", parts=("hook that counts and keeps a list",), kills=(0.4,)
    ),
    "a carried state in a namespace": Recipe(
        place="namespace", model="recurrent, state carried over", seed=88, kills=(0.8,)
    ),
    "the order of an optimizer's state": Recipe(
        model="layers left out by chance", seed=2, kills=(0.77,)
    ),
    "a run's description that is read again, and a shelf": Recipe(
        parts=("run folder that describes itself", "shelf"), kills=(0.5, 0.8)
    ),
}


@pytest.fixture(scope="module")
def client() -> Iterator[WarmClient]:
    client = WarmClient()
    yield client
    client.close()


@pytest.mark.parametrize("name", WENT_WRONG)
def test_a_program_that_went_wrong_once_is_right(
    name: str, client: WarmClient, tmp_path: Path
) -> None:
    verdict = try_recipe(WENT_WRONG[name], client, tmp_path / "run")

    assert verdict.kind == "exact", verdict
    assert verdict.healthy == ""


@pytest.mark.timeout(1200)
@settings(
    max_examples=9,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(number=st.integers(0, 10**6))
def test_what_is_called_exact_is_exact(number: int, client: WarmClient, tmp_path: Path) -> None:
    verdict = try_recipe(recipe_of(7, number), client, tmp_path / "run", healthy=number % 4 == 0)

    assert not verdict.broken
    assert not verdict.is_false_exact, (number, verdict)
    assert verdict.healthy == "", (number, verdict)
