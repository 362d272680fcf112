"""Which files count as a library's."""

import json
from pathlib import Path

import numpy
import pytest
import torch

from supervisor.training_state.user_code import is_library_file


def test_python_and_packages_are_libraries_and_a_users_file_is_none():
    assert all(is_library_file(module.__file__) for module in (json, numpy, torch.nn))
    assert not is_library_file(__file__)


def test_packages_installed_beside_the_script_are_libraries_and_the_script_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = tmp_path / "tool-1.0.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text("tool/__init__.py,sha256=x,1\nsingle.py,sha256=x,1\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    assert is_library_file(str(tmp_path / "tool" / "deep" / "part.py"))
    assert is_library_file(str(tmp_path / "single.py"))
    assert not is_library_file(str(tmp_path / "train.py"))
    assert not is_library_file(str(tmp_path / "toolbox" / "part.py"))


def test_code_that_torch_has_compiled_is_not_the_scripts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))

    assert is_library_file(str(tmp_path / "cache/ag/cag33.py"))
    assert not is_library_file(str(tmp_path / "cached.py"))
