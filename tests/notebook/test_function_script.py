"""A function becomes a script of its own, or it is said what it lacks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.errors import UsageError
from supervisor.notebook.function_script import function_script
from tests.notebook import a_module

PROGRAM = """
import math, os.path as places
from collections import Counter as Count

LIMIT = 3

def good(name, times=2):
    import json
    def inner():
        return Count(name), math.pi > times, places.basename("a/b")
    print(json.dumps(str(inner())))

def bad():
    return LIMIT

def outer():
    inside = 1
    def closure():
        return inside
    return closure

from supervisor.notebook.function_script import function_script
from supervisor.errors import UsageError
print(function_script(good, {"name": "aab"}))
for function, arguments in ((bad, {}), (outer(), {}), (lambda: 1, {}), (good, {"name": {1}})):
    try:
        function_script(function, arguments)
    except UsageError as error:
        print(error, file=__import__("sys").stderr)
"""


def test_the_text_and_the_imports_of_a_programs_own_function_are_taken_over(
    tmp_path: Path,
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    told = subprocess.run(
        [sys.executable, tmp_path / "program.py"], capture_output=True, text=True, check=True
    )
    (tmp_path / "script.py").write_text(told.stdout)

    ran = subprocess.run(
        [sys.executable, tmp_path / "script.py"], capture_output=True, text=True, check=True
    )

    assert ran.stdout == "\"(Counter({'a': 2, 'b': 1}), True, 'b')\"\n"
    uses_a_value, uses_what_is_around, has_no_name, no_json = told.stderr.splitlines()
    assert "bad: uses LIMIT, which only this notebook or program has" in uses_a_value
    assert "closure: uses inside of the function around it" in uses_what_is_around
    assert "expected a function written with `def`" in has_no_name
    assert "arguments of good: Object of type set is not JSON serializable" in no_json


def test_a_function_of_a_module_is_imported() -> None:
    text = function_script(a_module.train, {"steps": 1, "out": "x"})

    assert "from tests.notebook.a_module import train" in text
    with pytest.raises(UsageError, match="arguments of train"):
        function_script(a_module.train, {"steps": object()})
