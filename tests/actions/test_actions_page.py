from __future__ import annotations

import re
from pathlib import Path

from supervisor.actions.catalogue import build_actions
from supervisor.config_check import ACTION_NAMES

PAGE = (Path(__file__).parents[2] / "docs" / "actions.md").read_text()


def test_the_table_lists_every_action_with_its_moment() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (update|boundary) \|", PAGE, re.MULTILINE))

    assert rows == {name: action.moment for name, action in build_actions().items()}
    assert set(ACTION_NAMES) == set(rows)
