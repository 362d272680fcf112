"""What a script has set for its whole process is found and can be set again."""

from __future__ import annotations

import importlib
import sqlite3
from pathlib import Path

import numpy as np
import pytest
import torch

from supervisor.training_state import user_code
from supervisor.training_state.script_state.inside_process import ProcessWide
from supervisor.training_state.script_state.place import assigned_by
from supervisor.training_state.script_state.reach import Reach


def test_variables_of_the_environment_count_once_they_are_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wide = ProcessWide()
    assert "environment_CALLS_OF_TEST" not in wide
    monkeypatch.setenv("CALLS_OF_TEST", "3")

    assert dict(wide)["environment_CALLS_OF_TEST"] == "3"


def test_where_compiled_code_finds_something_in_its_process_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR", "140737")

    assert not [name for name in ProcessWide() if "TORCHINDUCTOR" in name]


def test_settings_are_told_and_set() -> None:
    wide, then = ProcessWide(), dict(ProcessWide())
    try:
        torch.set_default_dtype(torch.float64)
        np.seterr(over="raise")
        assert (wide["default_dtype"], wide["numpy_errors"]["over"]) == ("float64", "raise")
    finally:
        for name in ("default_dtype", "numpy_errors"):
            wide[name] = then[name]

    assert (torch.get_default_dtype(), np.geterr()["over"]) == (torch.float32, "warn")


def test_hooks_of_the_script_are_found_and_those_of_libraries_are_not() -> None:
    def own(*_: object) -> None: ...

    handle = torch.nn.modules.module.register_module_forward_hook(own)
    try:
        assert ProcessWide()["hooks_after_forwards"] == (own,)
    finally:
        handle.remove()


def library(folder: Path) -> str:
    """A library that keeps statements beside a connection, as SQLAlchemy does."""
    (folder / "site-packages").mkdir()
    (folder / "site-packages" / "mapper_of_rows.py").write_text(
        "import sqlite3\n"
        "class Dialect:\n"
        "    def __init__(self): self.dbapi = sqlite3\n"
        "class Engine:\n"
        "    def __init__(self): self.dialect, self.compiled = Dialect(), {'select': 1}\n"
        "class Storage:\n"
        "    def __init__(self): self.engine, self.rows = Engine(), 3\n"
    )
    return str(folder / "site-packages")


def test_statements_of_a_database_are_no_state_of_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = library(tmp_path)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(user_code, "_LIBRARY_FOLDERS", (*user_code._LIBRARY_FOLDERS, folder))
    mapper = importlib.import_module("mapper_of_rows")

    class Own:
        def __init__(self) -> None:
            self.driver, self.rows, self.storage = sqlite3, 5, mapper.Storage()

    found = {place.path for place in Reach({"main": {"own": Own()}})}

    assert {"main.own.rows", "main.own.storage.rows", "main.own.storage.engine"} <= found
    assert not any(path.startswith("main.own.storage.engine.") for path in found)


def test_attributes_that_a_class_assigns_are_found_by_their_names() -> None:
    names = [
        f"name_{number}" for number in range(300)
    ]  # beyond the first 256 a number has two parts
    scope: dict[str, type] = {}
    body = "; ".join(f"self.{name} = {name!r}" for name in names)
    exec(f"class Wide:\n    def __init__(self): {body}", scope)

    assert assigned_by(scope["Wide"]) == set(names)
