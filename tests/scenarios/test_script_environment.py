"""The script's environment is its own, and so is that of what it starts."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import pytest

from tests.scenarios import runs

supervised = partial(runs.supervised, executed=True)

LOOK = """
import json, os, subprocess, sys

LIST = "import json, os; print(json.dumps(dict(os.environ)))"
child = subprocess.run([sys.executable, "-c", LIST], capture_output=True, text=True)
print(json.dumps([dict(os.environ), json.loads(child.stdout)]))
"""


@pytest.mark.parametrize("salt", ["", "7"])
def test_the_script_sees_the_environment_that_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, salt: str
) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    if salt:
        monkeypatch.setenv("PYTHONHASHSEED", salt)

    own, of_a_child = json.loads(supervised(tmp_path, LOOK).stdout)

    assert own.get("PYTHONHASHSEED", "") == of_a_child.get("PYTHONHASHSEED", "") == salt
    assert own.keys() - os.environ.keys() == set()
    assert of_a_child.keys() - os.environ.keys() == set()
