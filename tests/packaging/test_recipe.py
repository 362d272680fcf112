"""The conda recipe says what pyproject.toml says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml

from supervisor.version import __version__

tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONDA_NAMES = {"torch": "pytorch", "matplotlib": "matplotlib-base", "xxhash": "python-xxhash"}
"""Where conda-forge calls a package otherwise."""


@pytest.fixture(scope="module")
def recipe() -> dict[str, Any]:
    text = (ROOT / "conda" / "meta.yaml").read_text()
    loaded: dict[str, Any] = yaml.safe_load(jinja2.Template(text).render(PYTHON="python"))
    return loaded


def split(requirement: str) -> tuple[str, str]:
    name, bound = re.fullmatch(r"([\w.-]+?)(?:\[[^]]*])?\s*([<>=!~].*)?", requirement).groups()  # type: ignore[union-attr]
    return name, bound or ""


def test_versions_are_one(recipe: dict[str, Any]) -> None:
    assert recipe["package"] == {"name": PROJECT["name"], "version": PROJECT["version"]}
    assert PROJECT["version"] == __version__


def test_dependencies_are_the_same(recipe: dict[str, Any]) -> None:
    needed = dict(map(split, PROJECT["dependencies"]))
    wanted = {CONDA_NAMES.get(name, name): bound for name, bound in needed.items()}

    named = dict(map(split, recipe["requirements"]["run"]))

    assert named == {"python": PROJECT["requires-python"], **wanted}


def test_command_license_and_summary_are_the_same(recipe: dict[str, Any]) -> None:
    commands = [f"{name} = {target}" for name, target in PROJECT["scripts"].items()]

    assert recipe["build"]["entry_points"] == commands
    assert recipe["about"]["license"] == PROJECT["license"]
    assert recipe["about"]["summary"] == PROJECT["description"]
    assert (ROOT / recipe["about"]["license_file"]).is_file()


def test_every_extra_is_told_of_or_for_developers() -> None:
    extras = set(PROJECT["optional-dependencies"])
    pages = "".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))

    told = set(re.findall(r"training-supervisor\[([\w,]+)\]", pages))

    assert told <= extras


def test_classifiers_name_the_pythons_that_are_supported() -> None:
    told = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))

    assert told[0] == PROJECT["requires-python"].removeprefix(">=")
    assert "Typing :: Typed" in PROJECT["classifiers"]
