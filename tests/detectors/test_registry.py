from __future__ import annotations

from typing import Any

import pytest

from supervisor.detectors.base import Detector
from supervisor.detectors.registry import BUILTIN, build_detectors, load_alert_handlers
from supervisor.errors import ConfigError
from supervisor.records import Alert, StepRecord


class OwnDetector(Detector):
    name = "unnamed"

    def __init__(self, *, line: float = 1.0) -> None:
        self.line = line

    def update(self, record: StepRecord) -> Alert | None:
        self.score = 0.0
        return None


HERE = f"{__name__}.OwnDetector"


def test_an_empty_section_builds_every_built_in_detector() -> None:
    names = [detector.name for detector in build_detectors({})]

    assert names == list(BUILTIN)


def test_null_switches_a_detector_off_and_settings_reach_the_others() -> None:
    built = build_detectors({"loss_anomaly": None, "gradient_anomaly": {"k": 2.0}})

    by_name: dict[str, Any] = {detector.name: detector for detector in built}
    assert "loss_anomaly" not in by_name
    assert by_name["gradient_anomaly"].k == 2.0


def test_a_dotted_path_adds_a_detector_of_ones_own_under_its_key() -> None:
    built = build_detectors({"mine": {"class": HERE, "line": 3.0}, "too": {"class": HERE}})

    mine, too = (d for d in built if isinstance(d, OwnDetector))
    assert (mine.name, mine.line) == ("mine", 3.0)
    assert too.name == "too"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"loss_anomly": {}}, "did you mean loss_anomaly"),
        ({"loss_anomaly": {"kk": 1}}, "did you mean k"),
        ({"loss_anomaly": 3}, "give its settings"),
        ({"mine": {"class": "no.such.module"}}, "importable"),
        ({"mine": {"class": "collections.OrderedDict"}}, "not a Detector"),
        ({"nosuch": None}, "unknown detector"),
    ],
)
def test_a_wrong_section_is_refused_with_advice(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        build_detectors(settings)


def test_alert_handlers_are_functions_that_can_be_imported() -> None:
    assert load_alert_handlers(["builtins.print"]) == [print]


@pytest.mark.parametrize(
    ("path", "said"),
    [("no.such.handler", "importable"), ("print", "importable"), ("math.pi", "not a function")],
)
def test_a_wrong_alert_handler_is_refused_with_its_place(path: str, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"alert_handlers\[0\].*{said}"):
        load_alert_handlers([path])


def test_a_detector_of_an_earlier_version_is_left_out() -> None:
    built = build_detectors({"page_hinkley": {"delta": 0.1}, "adam_rms": None})

    assert [detector.name for detector in built] == list(BUILTIN)


@pytest.mark.parametrize(
    ("name", "earlier"),
    [
        ("dead_units", "supervisor.detectors.dead_units.DeadUnitsDetector"),
        ("constant_loss", "supervisor.detectors.loss.constant_loss.ConstantLossDetector"),
        ("reward_drift", "supervisor.detectors.reward_drift.RewardDriftDetector"),
        ("resources", "supervisor.detectors.resources.ResourcesDetector"),
    ],
)
def test_a_config_may_name_a_built_in_class_by_its_earlier_place(name: str, earlier: str) -> None:
    built = build_detectors({name: {}, "second": {"class": earlier}})

    usual = next(d for d in built if d.name == name)
    second = next(d for d in built if d.name == "second")
    assert second.state_dict() == usual.state_dict()
    assert type(second).__name__ == type(usual).__name__
