"""Words behind FILE:FUNCTION and the parameters that they become."""

from __future__ import annotations

import enum
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Optional

import pytest

from supervisor.errors import UsageError
from supervisor.function_arguments import bind, check, real_signature, written_signature
from supervisor.worker.run import Run


class Mode(enum.Enum):
    FAST = "fast"
    SLOW = "slow"


def train(
    run: Run,
    epochs: int,
    name: str = "x",
    *,
    flag: bool = False,
    on: bool = True,
    lr=0.1,
    guessed=None,
    sizes: list[int] | None = None,
    betas: tuple[float, float] = (0.9, 0.99),
    out: Optional[Path] = None,  # noqa: UP045
    mode: Mode = Mode.FAST,
    kind: Literal["a", "b"] = "a",
    batch_size: int = 4,
):
    return {key: value for key, value in locals().items() if key != "run"}


def gathers(run, *numbers: int, **more: float):
    return run, numbers, more


def by_place(a, b=2, /, c=3.0, *rest):
    return a, b, c, rest


def call(function: Callable[..., Any], *words: str) -> Any:
    arguments, named = bind("t.py:f", real_signature(function), words, lambda: "the run")
    return function(*arguments, **named)


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (("3",), "epochs", 3),
        (("--epochs", "3"), "epochs", 3),
        (("--epochs=3", "--epochs=4"), "epochs", 4),
        (("3", "y"), "name", "y"),
        (("3", "--name=--y"), "name", "--y"),
        (("3", "--flag"), "flag", True),
        (("3", "--no-on"), "on", False),
        (("3", "--on", "false"), "on", False),
        (("--flag", "3"), "epochs", 3),
        (("3", "--lr", "-1e-3"), "lr", -1e-3),
        (("3", "--guessed", "7"), "guessed", 7),
        (("3", "--guessed", "seven"), "guessed", "seven"),
        (("3", "--sizes", "1", "2"), "sizes", [1, 2]),
        (("3", "--sizes=1", "--sizes=2"), "sizes", [1, 2]),
        (("3", "--betas", "0.5", "1"), "betas", (0.5, 1.0)),
        (("3", "--out", "a/b"), "out", Path("a/b")),
        (("3", "--out", "none"), "out", None),
        (("3", "--mode", "SLOW"), "mode", Mode.SLOW),
        (("3", "--mode", "slow"), "mode", Mode.SLOW),
        (("3", "--kind", "b"), "kind", "b"),
        (("3", "--batch-size", "8"), "batch_size", 8),
        (("3", "--batch_size", "8"), "batch_size", 8),
        (("--", "3"), "epochs", 3),
    ],
)
def test_a_word_becomes_what_its_parameter_takes(
    words: tuple[str, ...], name: str, value: object
) -> None:
    found = call(train, *words)[name]

    assert (found, type(found)) == (value, type(value))


def test_what_is_not_given_has_its_default() -> None:
    assert call(train, "3") == train(None, 3)


def test_words_that_fit_no_name_go_to_the_function_that_gathers_them() -> None:
    assert call(gathers, "1", "-2", "--a-b", "3") == ("the run", (1, -2), {"a_b": 3.0})
    assert call(by_place, "1", "2", "3", "4", "x") == (1, 2, 3.0, (4, "x"))
    assert call(by_place, "1", "--c", "9") == (1, 2, 9.0, ())


@pytest.mark.parametrize(
    ("function", "words", "said"),
    [
        (train, (), "t.py:f: missing: --epochs (a whole number)"),
        (train, ("--epoch", "3"), "t.py:f: --epoch: no such parameter; did you mean --epochs?"),
        (train, ("3", "--zzz=1"), "--zzz: no such parameter; it has: --epochs, --name, "),
        (train, ("3", "-v"), "-v: no such parameter; it has"),
        (train, ("three",), "--epochs 'three': expected a whole number"),
        (train, ("3", "--name"), "--name: give it a value: text"),
        (train, ("3", "--flag=maybe"), "--flag 'maybe': expected true or false"),
        (train, ("3", "--no-name"), "--no-name: no such parameter; did you mean --name?"),
        (train, ("3", "--mode", "odd"), "--mode 'odd': expected one of FAST, SLOW"),
        (train, ("3", "--kind", "c"), "--kind 'c': expected one of a, b"),
        (train, ("3", "--sizes", "1", "x"), "--sizes '1 x': expected one or more of: a whole"),
        (train, ("3", "--betas", "1"), "--betas '1': expected a number and a number"),
        (train, ("3", "y", "4"), "'4': no parameter is left for it; it has: --epochs"),
        (gathers, ("x",), "--numbers 'x': expected a whole number"),
        (gathers, ("--a", "x"), "--a 'x': expected a number"),
        (by_place, ("--a", "1"), "--a: no such parameter; it has"),
        (lambda: None, ("x",), "it has: none; a script that reads sys.argv is run without"),
    ],
)
def test_what_does_not_fit_is_named_with_what_was_expected(
    function: Callable[..., Any], words: tuple[str, ...], said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        call(function, *words)

    assert said in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "def f(epochs=2): 1 / 0",
        "import supervisor\ndef f(run: supervisor.Run, epochs: int = 2): 1 / 0",
        "from supervisor import Run\ndef f(r: Run | None = None, epochs: int = 2): 1 / 0",
        "from typing import Optional as O\ndef f(run, *, epochs: O[int] = None): 1 / 0",
        "class Odd: pass\ndef f(epochs: int, other: Odd = None): 1 / 0",
        "def f(other=3): pass\ndef f(epochs=2): 1 / 0",
    ],
)
def test_before_anything_is_started_the_written_signature_is_asked(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "t.py"
    path.write_text(f"raise RuntimeError('it was run')\n{text}\n")

    check(str(path), "f", ["--epochs", "3"])

    with pytest.raises(UsageError, match="did you mean --epochs"):
        check(str(path), "f", ["--epoch", "3"])
    with pytest.raises(UsageError, match="expected a whole number"):
        check(str(path), "f", ["--epochs", "x"])


@pytest.mark.parametrize(
    "text",
    [
        "from other import f",
        "import functools\n@functools.cache\ndef f(epochs=2): pass",
        "Sizes = list[int]\ndef f(epochs: Sizes): pass",
        "import torch\ndef f(device: torch.device): pass",
        "def f(epochs: 'Later'): pass",
        "def f(epochs=open('x', 'w')): pass",
        "if True:\n    def f(epochs=2): pass",
        "def f(:",
    ],
)
def test_what_only_the_function_can_tell_is_left_to_the_worker(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.py"
    path.write_text(text)

    assert written_signature(str(path), "f") is None
    check(str(path), "f", ["--anything", "goes"])
    assert list(tmp_path.iterdir()) == [path]
