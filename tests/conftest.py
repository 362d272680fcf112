"""Options of the whole suite."""

from __future__ import annotations

import os
import tempfile

import pytest
from hypothesis import settings

# Two test processes with two threads each on two cores wait for one another a hundredfold.
os.environ["OMP_NUM_THREADS"] = "1"

# Each run starts several processes of ours: without bytecode on disk, each compiles it all anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Whole runs file their cases in the user's library; tests have one of their own.
os.environ["SUPERVISOR_CASES"] = os.path.join(
    tempfile.mkdtemp(prefix="supervisor-cases-"), "cases.sqlite"
)

# The same examples every time: a submission must not fail by chance, nor pass by it.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--all"):
        from tests.scenarios import runs

        runs.all_are_executed = True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--all"):
        for item in items:
            if item.get_closest_marker("exhaustive"):
                item.add_marker(pytest.mark.skip(reason="with --all"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all",
        action="store_true",
        help="the cases that are near another one, too, and every worker executed (an hour)",
    )
    parser.addoption(
        "--all-kills",
        action="store_true",
        help="strike every loop style at every place, not at one (20 minutes)",
    )
    parser.addoption(
        "--all-healthy",
        action="store_true",
        help="run every healthy kind under every policy, not a few (40 minutes)",
    )
    parser.addoption(
        "--all-faults",
        action="store_true",
        help="every numerical fault under a closure, too, not three of the seven (1 minute)",
    )
    parser.addoption(
        "--soak",
        type=int,
        default=7,
        metavar="FAULTS",
        help="faults that come one after another in tests/chaos (7; 200 take about 5 minutes)",
    )
