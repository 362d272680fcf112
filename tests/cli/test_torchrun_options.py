"""A launcher that has called torchrun changes one word."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from supervisor.cli.options.ranks_options import _REFUSED
from supervisor.parent.process.launch import LaunchSpec
from tests.cli.conftest import Cli
from tests.cli.test_run import launched

__all__ = ["launched"]
ACTIONS = [a for a in get_args_parser()._actions if a.option_strings and a.dest != "help"]
PAGE = Path(__file__).parents[2] / "docs" / "ranks.md"
VALUES = {
    **{"nnodes": "1", "nproc_per_node": "2", "rdzv_backend": "c10d", "master_port": "29500"},
    **{"node_rank": "0"},
}
TOGETHER = ("rdzv_endpoint", "rdzv_id", "rdzv_conf", "master_addr", "master_port", "node_rank")
"""Given beside others, and checked together."""


def name_of(action: argparse.Action) -> str:
    return "--" + action.dest.replace("_", "-")


@pytest.mark.parametrize("action", ACTIONS, ids=name_of)
def test_each_option_of_torchrun_is_taken_or_refused_with_what_to_do(
    cli: Cli, script: Path, launched: list[LaunchSpec], action: argparse.Action
) -> None:
    for option in action.option_strings:
        words = [option] if action.nargs == 0 else [option, VALUES.get(action.dest, "1")]
        target = "json.tool" if action.dest == "module" else "train.py"

        code, _, err = cli("run", *words, target)

        if name_of(action) in _REFUSED:
            assert code == 64
            assert f"run: {name_of(action)}: torchrun's, not supported: " in err
        elif action.dest in TOGETHER:
            assert "unrecognized" not in err
        else:
            assert code == 75, err
            assert launched[-1].target == target


def test_what_means_something_else_here_is_told(
    cli: Cli, script: Path, launched: list[LaunchSpec]
) -> None:
    _, _, err = cli("run", "--standalone", "--max-restarts=3", "-t", "3", "train.py", "--tee", "1")

    assert err.splitlines() == [
        "supervisor: --max-restarts: not as with torchrun: restart.crash_limit says when a run is "
        "given up (--set)",
        "supervisor: --tee: not as with torchrun: each rank's output is kept in RUN/logs, and "
        "shown",
    ]
    assert launched[0].arguments == ("--tee", "1")


def test_the_manual_has_them_all() -> None:
    table = PAGE.read_text().partition("## Torchrun's options")[2].partition("\n## ")[0]

    told = set(re.findall(r"`(--[\w-]+)`", table))

    assert {name_of(action) for action in ACTIONS} - told == set()
    for name in _REFUSED:
        assert re.search(rf"`{name}`.*refused", table)


def test_ranks_come_from_torchruns_variables_unless_they_are_given(
    cli: Cli, script: Path, launched: list[LaunchSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PET_NPROC_PER_NODE", "2")

    cli("run", "train.py")
    cli("run", "--nproc-per-node", "3", "train.py")

    assert [spec.ranks.nproc_per_node for spec in launched if spec.ranks] == ["2", "3"]
