"""`SUPERVISOR_TRACE=1` shows which moment comes after which."""

from __future__ import annotations

import pytest

from supervisor.worker.core.part import Arrived, Part
from supervisor.worker.core.trace import STEPS, VARIABLE, trace


class Saving(Part):
    name = "saving"

    def at_boundary(self, step: int) -> None:
        print("saved")

    def goes_live(self, arrived: Arrived) -> None:
        print("live")


class Driver:
    def forward(self, module: object) -> str:
        return "output"


def test_the_first_steps_and_an_arrival_are_printed_part_by_part(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    part, driver, step = Saving(), Driver(), 0
    trace([driver], [part], lambda: step)

    assert driver.forward("a module") == "output"
    part.at_boundary(0)
    step = STEPS
    part.at_boundary(STEPS)
    part.goes_live(None)  # type: ignore[arg-type]

    said = capsys.readouterr()
    assert said.out == "saved\nsaved\nlive\n"
    assert said.err.splitlines() == [
        "supervisor: trace: step 0 Driver.forward str",
        "supervisor: trace: step 0   saving.at_boundary",
        f"supervisor: trace: step {STEPS}   saving.goes_live",
    ]


def test_without_the_variable_nothing_is_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    part, driver = Saving(), Driver()

    trace([driver], [part], lambda: 0)

    assert vars(part) == vars(driver) == {}
