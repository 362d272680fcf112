"""The page and the dashboard show metrics that exist."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

from supervisor.parent.metrics.run_figures import RunFigures

ROOT = Path(__file__).parents[3]
SERVED = {metric.name for metric in RunFigures("run", "train.py").metrics()}
DASHBOARD: dict[str, Any] = json.loads((ROOT / "examples" / "grafana.json").read_text())


def named(text: str) -> set[str]:
    return set(re.findall(r"\btraining_[a-z_]+", text))


def test_the_page_tells_of_every_metric_and_of_no_other() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()

    assert named(page) == SERVED


def test_the_dashboard_asks_for_metrics_that_are_served() -> None:
    asked = named(json.dumps(DASHBOARD))

    assert asked <= SERVED
    wanted = ("step", "loss", "risk", "attempts", "treatments_total", "goodput_ratio")
    assert {f"training_{name}" for name in wanted} <= asked
    assert "training_last_checkpoint_age_seconds" in asked


def test_panels_do_not_overlap_and_ask_the_chosen_source() -> None:
    panels = DASHBOARD["panels"]
    places = [
        {
            (x, y)
            for x in range(p["gridPos"]["x"], p["gridPos"]["x"] + p["gridPos"]["w"])
            for y in range(p["gridPos"]["y"], p["gridPos"]["y"] + p["gridPos"]["h"])
        }
        for p in panels
    ]

    assert len({panel["id"] for panel in panels}) == len(panels)
    assert not any(one & other for one, other in itertools.combinations(places, 2))
    assert max(x for place in places for x, _ in place) < 24
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert variables == {"datasource", "run"}
    for panel in panels:
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
            assert "$run" in target["expr"]
