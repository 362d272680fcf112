"""The tests on each Python that is supported; the results go into docs/versions.md.

``make versions`` runs all sessions, ``nox -s py312`` one of them, ``nox -R`` without installing
anew. Where an environment with everything in it exists already, its Python can be named and is used
as it is: ``VERSIONS_PY312=/path/to/python nox -s py312``. What follows ``--`` goes to pytest.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import nox

nox.needs_version = ">=2024.4.15"
nox.options.error_on_missing_interpreters = True

PROJECT = Path("pyproject.toml")
WHOLE = ("whole suite", ["tests"])
EXACTNESS = (
    "exactness",
    [
        *("tests/worker", "tests/training_state", "tests/test_pipeline.py"),
        *(
            f"tests/scenarios/test_{name}.py"
            for name in (
                *("another_order", "begun_steps", "closures", "exact_resume", "gathered_values"),
                *("generated_programs", "hidden_state", "kept_state", "parting_checkpoint"),
                *("prepared_data", "script_state", "skip_streams", "unseeded", "values_taken"),
            )
        ),
    ],
)
"""Where an interpreter that differs shows first: all that looks into frames, and whole kills."""
_SELECTING = {"-k", "-m", "-x", "--lf", "--deselect"}
"""Options of pytest after which its results are no row of the table."""
SESSIONS = {
    "oldest": ("3.10", WHOLE),
    "py311": ("3.11", EXACTNESS),
    "py312": ("3.12", EXACTNESS),
    "newest": ("3.13", WHOLE),
}


def _oldest() -> list[str]:
    """The minimum of each dependency: `torch>=2.6` becomes `torch==2.6`."""
    text = PROJECT.read_text()
    (needed,) = re.findall(r"^dependencies = \[(.*?)^\]", text, re.DOTALL | re.MULTILINE)
    return [f"{name}=={least}" for name, least in re.findall(r'"([\w-]+)>=([\d.]+)', needed)]


def _run(session: nox.Session) -> None:
    name = session.name
    python = os.environ.get(_variable(name), "")
    if not python:
        session.install("-e", ".[dev]", *(_oldest() if name == "oldest" else ["--upgrade"]))
    told, tests = SESSIONS[name][1]
    results = Path("build", "versions", f"{name}.xml").absolute()
    results.unlink(missing_ok=True)
    command = [python or "python", "-m"]
    session.run(
        *(*command, "pytest", "-q", "-n", "3", "--dist", "worksteal", f"--junitxml={results}"),
        *(*tests, *session.posargs),
        external=bool(python),
        success_codes=[0, 1],
    )
    if _SELECTING.isdisjoint(session.posargs):
        session.run(
            *command, "benchmarks.versions_table", str(results), told, external=bool(python)
        )
    else:
        session.log("a part of the tests: docs/versions.md stays as it is")


def _variable(name: str) -> str:
    return f"VERSIONS_{name.upper()}"


for _name, (_python, _) in SESSIONS.items():
    nox.session(_run, name=_name, python=False if _variable(_name) in os.environ else _python)
