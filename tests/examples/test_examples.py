"""Each example runs to its end under plain Python, and to the same result after a kill."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.scenarios.runs import Ended, supervised, train_plainly

EXAMPLES = Path(__file__).parents[2] / "examples"


def result(ended: Ended) -> str:
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = re.findall(r"^result: (.*)$", ended.stdout, re.MULTILINE)
    assert found, ended.stdout
    return str(found[-1])


@pytest.mark.parametrize("framework", ["torch", "lightning", "transformers", "accelerate"])
def test_a_killed_training_comes_to_the_result_of_plain_python(
    tmp_path: Path, framework: str
) -> None:
    pytest.importorskip(framework)
    text = (EXAMPLES / f"train_{framework}.py").read_text()
    words = ["--epochs", "2"]  # of 32 steps each

    undisturbed = train_plainly(tmp_path / "plain", text, words)
    killed = supervised(
        tmp_path / "killed",
        text,
        words,
        settings=("checkpoint.every_steps=10", "checkpoint.background=false"),
        faults="[{kind: sigkill, step: 47}]",
    )

    assert result(killed) == result(undisturbed)
    (resumed,) = killed.events("resumed")
    assert resumed["exactness"] == "exact", resumed
    assert not [event for event in killed.events("action") if event["outcome"] == "applied"]


def test_every_example_is_a_page_long() -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in EXAMPLES.glob("train_*")}

    assert set(lengths) == {
        f"train_{framework}.py"
        for framework in ("torch", "lightning", "transformers", "accelerate")
    }
    assert {name: length for name, length in lengths.items() if length > 90} == {}
