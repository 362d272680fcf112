"""The page about the check names every rule with its risk."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.source_check.rules import ALL_RULES
from supervisor.source_check.source import Rule

PAGE = Path(__file__).parents[2] / "docs" / "check.md"


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: rule.name)
def test_the_page_has_the_rule(rule: Rule) -> None:
    rows = PAGE.read_text(encoding="utf-8").splitlines()

    assert sum(row.startswith(f"| `{rule.name}` | {rule.risk} | ") for row in rows) == 1
