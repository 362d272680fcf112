"""A real run directory, damaged in any way: no reading command ends with a traceback."""

from __future__ import annotations

import contextlib
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from supervisor.cli.main import main
from tests.scenarios.runs import supervised

SCRIPT = """
import sys, torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(45):
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
torch.save(model.state_dict(), sys.argv[1])
"""
FAULTS = "[{kind: nan_loss, step: 20}, {kind: sigkill, step: 33}]"
HUGE = "a number of 400 digits"
JUNK: tuple[Any, ...] = (
    *(None, True, "", "7", "\x1b[31m", "x" * 300, 5, -1, 2**63, HUGE, 1e308),
    *(float("nan"), [], [[[]]], {}, {"a": 1}, "2026-13-45T99:99:99", "../../etc"),
)
COMMANDS = (
    ("report", "{run}", "--format", "md"),
    ("report", "{run}", "--format", "json"),
    ("list", "{folder}"),
    ("list", "{folder}", "--json"),
    ("watch", "{run}", "--once"),
    ("cases", "{folder}"),
    ("analyze", "{run}"),
    ("backtest", "{run}", "--json"),
    ("export", "{run}", "--to", "csv"),
    ("resume", "{run}"),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was treated, killed and resumed; it has come to its end."""
    folder = tmp_path_factory.mktemp("damaged") / "folder"
    folder.mkdir()
    ended = supervised(
        folder,
        SCRIPT,
        settings=["checkpoint.every_steps=10", "checkpoint.background=false"],
        faults=FAULTS,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.run_dir


def _files(run: Path) -> list[Path]:
    suffixes = (".json", ".jsonl", ".yaml")
    found = (p for p in run.rglob("*") if p.is_file() and p.suffix in suffixes)
    return sorted(p.relative_to(run) for p in found if "report" not in p.parts)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = (
        list(value.items())
        if isinstance(value, dict)
        else list(enumerate(value))
        if isinstance(value, list)
        else []
    )
    return [path, *(place for key, item in items for place in _places(item, (*path, key)))]


def _replaced(text: str, draw: Any) -> str:
    """`text`, one value in it replaced by junk or taken away."""
    value = json.loads(text)
    place = draw(st.sampled_from(_places(value)))
    junk = draw(st.sampled_from(JUNK))
    if not place:
        value = junk
    else:
        inner = value
        for key in place[:-1]:
            inner = inner[key]
        if draw(st.booleans()):
            inner[place[-1]] = junk
        else:
            del inner[place[-1]]
    return json.dumps(value).replace(json.dumps(HUGE), "1" + 400 * "0")


def _damaged(data: bytes, suffix: str, draw: Any) -> bytes:
    how = draw(st.sampled_from(["value", "value", "value", "cut", "garbage", "empty"]))
    if how == "empty":
        return b""
    if how == "cut" or suffix == ".yaml" or not data.strip():
        return data[: draw(st.integers(0, len(data)))]
    if how == "garbage":
        return data[: len(data) // 2] + b"\xff\x00}{" + data[len(data) // 2 :]
    if suffix == ".json":
        return _replaced(data.decode(), draw).encode()
    lines = data.decode().splitlines()
    at = draw(st.integers(0, len(lines) - 1))
    lines[at] = _replaced(lines[at], draw)
    return "\n".join(lines).encode() + b"\n"


@settings(
    max_examples=int(os.environ.get("DAMAGED_RUNS", "120")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_no_damage_makes_a_reading_command_fail_with_a_traceback(
    whole: Path, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(_files(whole)))
    words = data.draw(st.sampled_from(COMMANDS))
    path = whole / name
    before = path.read_bytes()
    folder = whole.parent
    line = [word.format(run=whole, folder=folder) for word in words]
    out, errors = io.StringIO(), io.StringIO()
    state = json.loads((whole / "run.json").read_text())["state"]
    try:
        path.write_bytes(_damaged(before, path.suffix, data.draw))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            code = main(line)
    finally:
        path.write_bytes(before)

    assert state == "completed"
    assert code in (0, 1, 64), errors.getvalue()
    assert "Traceback" not in errors.getvalue() + out.getvalue()
    assert "\x1b[31m" not in out.getvalue()
