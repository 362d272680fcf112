"""Every built-in detector keeps the promises of `Detector`."""

from __future__ import annotations

import pytest

from supervisor.detectors.base import Detector
from supervisor.detectors.registry import BUILTIN, build_detectors
from supervisor.records import Alert, StepRecord
from supervisor.testing import check_detector, restless_run

NAMES = [*BUILTIN]


@pytest.mark.parametrize("name", NAMES)
def test_a_built_in_detector_conforms(name: str) -> None:
    def factory() -> Detector:
        return next(d for d in build_detectors({name: {}}) if d.name == name)

    check_detector(factory)


@pytest.mark.parametrize("name", NAMES)
def test_all_that_a_built_in_detector_changes_is_in_its_state(name: str) -> None:
    kind = type(next(d for d in build_detectors({name: {}}) if d.name == name))
    changed: set[str] = set()

    class Watched(kind):  # type: ignore[misc, valid-type]
        def __setattr__(self, attribute: str, value: object) -> None:
            changed.add(attribute)
            super().__setattr__(attribute, value)

    detector = Watched()
    changed.clear()
    detector._begin()
    begun = set(changed)
    for record in restless_run():
        detector.update(record)

    assert begun == set(kind._state)
    assert changed <= begun | {"score"}


class Forgetful(Detector):
    """Keeps a count that is in no state."""

    name = "forgetful"

    def _begin(self) -> None:
        self._count = 0

    def __init__(self) -> None:
        self._begin()

    def update(self, record: StepRecord) -> Alert | None:
        self._count += 1
        self.score = float(self._count)
        return None


class Fragile(Detector):
    name = "fragile"

    def update(self, record: StepRecord) -> Alert | None:
        self.score = 1.0 / record.loss
        return None


def test_a_detector_whose_state_is_incomplete_is_caught() -> None:
    with pytest.raises(AssertionError, match="goes on differently"):
        check_detector(Forgetful)


def test_a_detector_that_raises_or_scores_nan_is_caught() -> None:
    with pytest.raises(AssertionError, match=r"step \d+"):
        check_detector(Fragile)
