"""Runs of a warm process are alone with what they learn."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.generated.warm_client import WarmClient

SCRIPT = """
import torch

weight = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(weight.parameters())
for step in range(120):
    loss = weight(torch.randn(8, 4)).square().mean() * (float("nan") if step == 40 else 1.0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_no_case_is_filed_in_the_users_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = tmp_path / "cases.sqlite"
    monkeypatch.setenv("SUPERVISOR_CASES", str(users))
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "script.py").write_text(SCRIPT)
    client = WarmClient()

    ended = client.supervised(folder, str(folder / "script.py"), settings=())
    client.close()

    assert ended.returncode == 0
    assert not users.exists()
    assert folder.with_suffix(".cases").exists()
