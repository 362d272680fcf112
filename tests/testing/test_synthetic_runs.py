from __future__ import annotations

import pytest

from supervisor.testing import HEALTHY_KINDS, TROUBLED_KINDS, synthetic_run


@pytest.mark.parametrize("kind", [*HEALTHY_KINDS, *TROUBLED_KINDS])
def test_a_synthetic_run_is_the_same_each_time_and_differs_by_seed(kind: str) -> None:
    first = repr(list(synthetic_run(kind, 50, 1)))

    assert repr(list(synthetic_run(kind, 50, 1))) == first
    assert repr(list(synthetic_run(kind, 50, 2))) != first


def test_an_unknown_kind_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="slow_divergence"):
        list(synthetic_run("nonsense"))
