"""Options of the whole suite."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-kills",
        action="store_true",
        help="strike every loop style at every place, not at one (20 minutes)",
    )
