"""The examples of docs/detectors.md do what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from supervisor.detectors.registry import BUILTIN
from supervisor.records import Alert, Cause, Severity
from supervisor.testing import check_detector

PAGE = (Path(__file__).parents[2] / "docs" / "detectors.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def block(part: str) -> dict[str, Any]:
    """Runs the example that contains `part`; returns its names."""
    found: dict[str, Any] = {"__name__": "page"}
    text = next(text for text in BLOCKS if part in text)
    exec(compile(text, "docs/detectors.md", "exec"), found)
    return found


def test_the_detector_of_the_page_conforms() -> None:
    check_detector(block("class RewardDrop")["RewardDrop"])


def test_the_alert_handler_of_the_page_tells_of_serious_alerts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tell = block("on_alert")["tell_the_team"]

    for severity in (Severity.HIGH, Severity.LOW):
        about = {"category": "loss", "kind": "spike", "cause": Cause.SPIKE, "message": "it rose"}
        tell(Alert(detector="x", severity=severity, step=7, **about))  # type: ignore[arg-type]

    assert capsys.readouterr().out == "step 7: it rose\n"


def test_every_built_in_detector_is_on_the_page() -> None:
    missing = [name for name in BUILTIN if f"`{name}`" not in PAGE]

    assert not missing
