"""`supervisor diff` and `supervisor quantize` from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from supervisor.cli.main import main

MODEL = """
import torch
from torch import nn
print("noise of the user's file")
WIDTH = 4
sound = nn.Linear(WIDTH, WIDTH)
def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 3), nn.Tanh(), nn.Linear(3, 2))
def wrong():
    return [1]
def broken():
    raise ValueError("two\\nlines")
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    path = tmp_path / "sample.pt"
    torch.save(torch.ones(2, 4), path)
    return path


class Foreign:
    pass


def failed(capsys: pytest.CaptureFixture[str], *words: Any) -> str:
    """Runs a command that must fail, and returns its one line."""
    assert main([str(word) for word in words]) == 64
    output = capsys.readouterr()
    assert output.out == ""
    lines = [line for line in output.err.splitlines() if "noise" not in line]
    assert len(lines) == 1
    assert lines[0].startswith("supervisor: error: ")
    return lines[0]


@pytest.mark.parametrize("factory", ["build", "sound"])
def test_diff_prints_one_document(
    model: Path, sample: Path, factory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["diff", f"{model}:{factory}", "--input", str(sample), "--json"])

    document = json.loads(capsys.readouterr().out)
    assert code == 0
    assert document["dtype"] == "bf16"
    assert document["worst"] in [layer["name"] for layer in document["layers"]]


def test_diff_prints_a_table_and_draws(
    model: Path, sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "diff.svg"

    words = ["diff", f"{model}:build", "--input", str(sample), "--dtype", "fp16", "--autocast"]
    code = main([*words, "--plot", str(picture)])

    assert code == 0
    assert "FP32 against FP16" in capsys.readouterr().out
    assert picture.exists()


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("model.py", "no MODEL.py:FACTORY"),
        ("absent.py:build", "no such file"),
        ("model.py:buidl", "did you mean build?"),
        ("model.py:wrong", "returned list, not a torch.nn.Module"),
        ("model.py:broken", "raised ValueError: two lines"),
        ("model.py:WIDTH", "int cannot be called"),
        ("bad.py:build", "cannot be imported (SyntaxError"),
        ("ends.py:build", "cannot be imported (SystemExit: 3)"),
    ],
)
def test_diff_refuses_what_is_no_model_in_one_line(
    model: Path, sample: Path, reference: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model.with_name("bad.py").write_text("def (")
    model.with_name("ends.py").write_text("raise SystemExit(3)")

    line = failed(capsys, "diff", model.with_name(reference), "--input", sample)

    assert message in line


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.ones(2, 5), "forward pass in FP32 failed in 0"),
        ((torch.ones(2, 4), torch.ones(1)), "forward pass in FP32 failed"),
        ({"text": "none"}, "holds dict without a tensor"),
        (3, "holds int without a tensor"),
        (Foreign(), "could run code"),
    ],
)
def test_diff_refuses_a_wrong_sample_in_one_line(
    model: Path, sample: Path, value: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(value, sample)

    assert message in failed(capsys, "diff", f"{model}:build", "--input", sample)


@pytest.mark.parametrize("content", [b"", b"not a file of torch"])
def test_a_damaged_file_is_refused_in_one_line(
    sample: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    sample.write_bytes(content)

    failed(capsys, "quantize", sample)


def test_a_missing_file_is_refused_in_one_line(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = tmp_path / "absent.pt"

    assert "no such file" in failed(capsys, "diff", f"{model}:build", "--input", absent)
    assert "no such file" in failed(capsys, "quantize", absent)


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (torch.ones(3), ["tensor"]),
        (nn.Linear(2, 2).state_dict(), ["weight", "bias"]),
        ([torch.ones(2), {"a": torch.ones(1)}], ["[0]", "[1].a"]),
    ],
)
def test_quantize_names_every_tensor(
    sample: Path, value: Any, names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(value, sample)

    code = main(["quantize", str(sample), "--dtype", "fp8_e4m3", "--json"])

    document = json.loads(capsys.readouterr().out)
    assert code == 0
    assert [tensor["name"] for tensor in document["tensors"]] == names


def test_quantize_prints_a_table_and_draws(
    sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"small": torch.full((8,), 1e-9), "usual": torch.ones(4, 2)}, sample)
    picture = tmp_path / "quantize.png"

    code = main(["quantize", str(sample), "--dtype", "fp16", "--plot", str(picture)])

    assert code == 0
    assert "small: 100 % of the elements are below 5.96e-08" in capsys.readouterr().out
    assert picture.exists()


def test_quantize_refuses_whole_numbers(sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(torch.arange(3), sample)

    assert "no tensor of floating numbers" in failed(capsys, "quantize", sample)
