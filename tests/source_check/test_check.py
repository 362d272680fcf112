"""The check as a whole: which files, which rules, what comes back."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.errors import UsageError
from supervisor.source_check.check import UNREADABLE, check_source
from supervisor.source_check.finding import to_sarif
from supervisor.source_check.rules import ALL_RULES
from tests.source_check import test_loss_and_state_rules, test_precision_rules, test_step_rules
from tests.source_check.checking import expected, program

RISKY = "import torch\nx = torch.load('a', weights_only=False)\n"


def _write(folder: Path, name: str, text: str = RISKY) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_every_rule_is_shown_by_a_program() -> None:
    families = (test_loss_and_state_rules, test_precision_rules, test_step_rules)
    texts = [program(body) for family in families for body in family.PROGRAMS.values()]

    shown = {rule for text in texts for _, rule in expected(text)}

    assert shown == {rule.name for rule in ALL_RULES}


def test_rule_names_are_unique_and_every_rule_says_why_and_how_to_mend_it() -> None:
    names = [rule.name for rule in ALL_RULES]

    assert len(set(names)) == len(names)
    assert all(rule.message.endswith(".") and rule.fix.endswith(".") for rule in ALL_RULES)


def test_a_finding_says_where_what_and_how_to_mend_it(tmp_path: Path) -> None:
    path = _write(tmp_path, "train.py")

    result = check_source(path)

    (finding,) = result.findings
    assert (finding.path, finding.line, finding.column) == (path, 2, 5)
    assert str(finding).startswith(f"{path}:2:5: medium: load-runs-code: ")
    assert repr(result).endswith(f"{finding.fix}\n1 finding in 1 file")


def test_the_document_has_the_fields_of_the_contract(tmp_path: Path) -> None:
    path = _write(tmp_path, "train.py")

    document = json.loads(json.dumps(check_source(str(path)).to_dict()))

    assert set(document) == {"findings", "files"}
    assert document["files"] == 1
    assert set(document["findings"][0]) == {"path", "line", "rule", "risk", "message", "fix"}
    assert document["findings"][0]["path"] == str(path)


def test_folders_are_searched_but_not_those_of_tools_and_environments(tmp_path: Path) -> None:
    _write(tmp_path, "train.py")
    _write(tmp_path, "package/model.py")
    _write(tmp_path, "notes.txt")
    for hidden in (".git/a.py", ".venv/a.py", "__pycache__/a.py", "own_env/a.py"):
        _write(tmp_path, hidden)
    _write(tmp_path, "own_env/pyvenv.cfg", "home = /usr/bin\n")

    result = check_source(tmp_path)

    assert result.files == 2
    assert [finding.path.name for finding in result.findings] == ["train.py", "model.py"]


@pytest.mark.parametrize(
    "content",
    [b"def broken(:\n", b"x = '\xff\xfe'\n", b"# coding: nonsense\n", b"x = 1\0\n", b"print 1\n"],
)
def test_a_file_that_is_not_python_is_one_finding(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_bytes(content)
    _write(tmp_path, "train.py")

    result = check_source(tmp_path)

    assert [finding.rule for finding in result.findings] == [UNREADABLE, "load-runs-code"]
    assert "was not checked" in result.findings[0].message


def test_a_missing_path_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file or folder"):
        check_source(tmp_path / "absent.py")
    with pytest.raises(UsageError, match="no Python file in it"):
        check_source(tmp_path)


def test_rules_can_be_selected_and_ignored(tmp_path: Path) -> None:
    path = _write(tmp_path, "a.py", RISKY + "torch.autograd.set_detect_anomaly(True)\n")

    selected = check_source(path, select=["anomaly-detection-on"])
    ignored = check_source(path, ignore=["anomaly-detection-on"])

    assert [finding.rule for finding in selected.findings] == ["anomaly-detection-on"]
    assert [finding.rule for finding in ignored.findings] == ["load-runs-code"]


@pytest.mark.parametrize("option", ["select", "ignore"])
def test_an_unknown_rule_names_the_nearest(option: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"did you mean clip-before-unscale\?"):
        check_source(tmp_path, **{option: ["clip-before-unscaled"]})


@pytest.mark.parametrize(
    "comment",
    [
        "# supervisor: ignore[load-runs-code]",
        "# supervisor: ignore",
        "# our own file  # supervisor: ignore[other, load-runs-code]",
        "# noqa: load-runs-code",
        "# noqa",
    ],
)
def test_a_comment_silences_a_rule_on_its_line(comment: str, tmp_path: Path) -> None:
    path = _write(tmp_path, "a.py", RISKY.rstrip() + f"  {comment}\n")

    assert check_source(path).findings == ()


def test_a_comment_above_or_within_a_long_call_silences_it(tmp_path: Path) -> None:
    text = (
        "import torch\n"
        "# supervisor: ignore[load-runs-code]\n"
        "torch.load('a', weights_only=False)\n"
        "torch.load(\n    'a',\n    weights_only=False,  # supervisor: ignore[load-runs-code]\n)\n"
    )

    assert check_source(_write(tmp_path, "a.py", text)).findings == ()


@pytest.mark.parametrize("comment", ["# supervisor: ignore[sqrt-at-zero]", "# noqa: E501"])
def test_a_comment_for_another_rule_silences_nothing(comment: str, tmp_path: Path) -> None:
    path = _write(tmp_path, "a.py", RISKY.rstrip() + f"  {comment}\n")

    assert len(check_source(path).findings) == 1


def test_a_comment_in_a_string_silences_nothing(tmp_path: Path) -> None:
    text = "import torch\ntorch.load('# noqa', weights_only=False)\n"

    assert len(check_source(_write(tmp_path, "a.py", text)).findings) == 1


def test_sarif_names_tool_rules_and_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _write(tmp_path, "a folder/train.py")
    monkeypatch.chdir(tmp_path)

    log = to_sarif(check_source(path))

    (run,) = log["runs"]
    (result,) = run["results"]
    location = result["locations"][0]["physicalLocation"]
    assert log["version"] == "2.1.0"
    assert run["tool"]["driver"]["rules"][0]["id"] == result["ruleId"] == "load-runs-code"
    assert result["level"] == "warning"
    assert location["artifactLocation"]["uri"] == "a%20folder/train.py"
    assert location["region"] == {"startLine": 2, "startColumn": 5}


def test_sarif_lists_every_rule_that_its_results_name(tmp_path: Path) -> None:
    _write(tmp_path, "broken.py", "def broken(:\n")

    (run,) = to_sarif(check_source(tmp_path))["runs"]

    named = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert {result["ruleId"] for result in run["results"]} <= named


_STATEMENTS = [
    "loss.backward()",
    "optimizer.step()",
    "optimizer.zero_grad()",
    "scaler.scale(loss).backward()",
    "scaler.step(optimizer)",
    "torch.nn.utils.clip_grad_norm_(p, 1.0)",
    "total += loss",
    "loss, x = (x - x.mean()) / x.std(), torch.log(torch.softmax(x, 0))",
    "x = [torch.sqrt((y ** 2).sum()) for y in x if (z := y)]",
    "torch.save({**x, 'epoch': 1, 'm': m.state_dict()}, 'checkpoint')",
    "with torch.autocast('cuda'): x = F.binary_cross_entropy(*x, **y)",
    "if x and not y: continue",
    "try:\n        m.eval()\n    except E: pass\n    else: m(x)",
    "f = lambda q: q / q.norm()",
    "match x:\n        case [a, *_]: loss = a",
]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(_STATEMENTS), min_size=1, max_size=8))
def test_any_order_of_statements_is_checked_without_an_error(
    tmp_path_factory: pytest.TempPathFactory, statements: list[str]
) -> None:
    text = "import torch\nfrom torch.nn import functional as F\nfor i in loader:\n"
    text += "".join(f"    {statement}\n" for statement in statements)
    ast.parse(text)
    path = _write(tmp_path_factory.mktemp("any"), "train.py", text)

    result = check_source(path)

    assert UNREADABLE not in {finding.rule for finding in result.findings}
