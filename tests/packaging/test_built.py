"""Wheel and sdist are built, checked, installed where nothing of this checkout is, and run."""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.exhaustive
SCRIPT = """
import torch
model = torch.nn.Linear(2, 1); optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    optimizer.zero_grad(); model(torch.ones(4, 2)).mean().backward(); optimizer.step()
"""


def done(*line: str | Path, cwd: Path, **more: str) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    ended = subprocess.run(
        list(map(str, line)),
        cwd=cwd,
        env=environment | more,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both; the wheel is built from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    done(sys.executable, "-m", "build", "--no-isolation", "-o", folder, ROOT, cwd=folder)
    return folder


def test_an_index_would_take_them(built: Path) -> None:
    files = sorted(built.iterdir())

    assert [path.suffix for path in files] == [".whl", ".gz"]
    told = done(sys.executable, "-m", "twine", "check", "--strict", *files, cwd=built)
    assert told.count("PASSED") == 2


def test_the_wheel_holds_what_is_needed_and_no_more(built: Path) -> None:
    (wheel,) = built.glob("*.whl")

    names = zipfile.ZipFile(wheel).namelist()

    assert "supervisor/py.typed" in names
    assert "supervisor/_shipped/policies/default.yaml" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"supervisor"}


def test_the_sdist_holds_tests_and_no_build_products(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")

    with tarfile.open(archive) as file:
        names = [name.partition("/")[2] for name in file.getnames()]

    assert {"pyproject.toml", "tests/packaging/test_built.py", "policies/default.yaml"} <= set(
        names
    )
    assert not [
        name for name in names if name.endswith(".pyc") or name.startswith((".venv", "runs/"))
    ]


def test_it_runs_where_nothing_of_the_checkout_is(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    home = tmp_path / "venv"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    done(python, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet", wheel, cwd=tmp_path)
    (own,) = (home / "lib").glob("python*/site-packages")
    # The dependencies, which take minutes to install, come from where the tests run; ours does not.
    others = [path for path in sys.path if "site-packages" in path] or site.getsitepackages()
    (own / "dependencies.pth").write_text("\n".join(others))
    command = home / "bin" / "supervisor"
    (tmp_path / "train.py").write_text(SCRIPT)

    where = done(python, "-c", "import supervisor; print(supervisor.__file__)", cwd=tmp_path)
    policies = json.loads(done(command, "policies", "--json", cwd=tmp_path))
    done(command, "run", "--set", "report.enabled=false", "train.py", cwd=tmp_path)

    assert Path(where.strip()).is_relative_to(own)
    assert Path(policies[0]["path"]).is_relative_to(own)
    assert json.loads(done(command, "runs", "--json", cwd=tmp_path))[0]["state"] == "completed"
