"""Long lists in a form that can be read."""

from __future__ import annotations

from supervisor.report.facts.crash_report import Intervention
from supervisor.report.facts.run_data import arrange_stacks
from supervisor.report.tables import SINGLE, sum_up_treatments

DUMP = """Thread 0x01 (most recent call first):
  File "queue.py", line 171 in get

Current thread 0x02 (most recent call first):
  File "train.py", line {line} in main
"""


def treatments(count: int) -> list[Intervention]:
    return [
        Intervention(name="rollback", step=step, attempt=1, time="", cost_s=0.5, outcome="failed")
        for step in range(count)
    ]


def test_a_few_treatments_have_a_line_each() -> None:
    lines = sum_up_treatments(treatments(SINGLE))

    assert [line.steps for line in lines] == [str(step) for step in range(SINGLE)]


def test_many_treatments_of_a_kind_share_a_line() -> None:
    other = Intervention(name="cut_lr", step=99, attempt=1, time="", outcome="applied")

    lines = sum_up_treatments([*treatments(SINGLE), other])

    assert [(line.steps, line.times, line.outcome) for line in lines] == [
        (f"0–{SINGLE - 1}", SINGLE, f"{SINGLE} failed"),
        ("99", 1, "applied"),
    ]
    assert lines[0].cost_s == 0.5 * SINGLE


def test_the_main_thread_comes_first_and_two_dumps_are_compared() -> None:
    waited = arrange_stacks(DUMP.replace("{line}", "7") * 2)
    slow = arrange_stacks(DUMP.replace("{line}", "7") + DUMP.replace("{line}", "9"))

    assert waited.splitlines()[0].endswith("it waited.")
    assert waited.index("train.py") < waited.index("queue.py")
    assert waited.count("train.py") == 1
    assert "only slow" in slow.splitlines()[0]
    assert arrange_stacks("no threads") == "no threads"
