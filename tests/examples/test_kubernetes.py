"""The manifest against the official schemas, where `kubernetes-validate` (108 MB) is installed."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from supervisor.cli.commands import run as run_command
from supervisor.cli.options.command_parser import build_parser

MANIFEST = Path(__file__).parents[2] / "examples" / "scheduling" / "kubernetes.yaml"
DOCUMENTS: list[dict[str, Any]] = list(yaml.safe_load_all(MANIFEST.read_text()))
RELEASES = ("1.29", "1.30", "1.32", "1.34", "1.36")


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document["kind"])
def test_a_cluster_would_take_it(document: dict[str, Any], release: str) -> None:
    validator = pytest.importorskip("kubernetes_validate")

    validator.validate(document, release, strict=True)


def test_a_typing_error_would_be_seen() -> None:
    validator = pytest.importorskip("kubernetes_validate")
    job = copy.deepcopy(DOCUMENTS[1])
    job["spec"]["template"]["spec"]["terminationGracePeriod"] = 60

    with pytest.raises(validator.ValidationError):
        validator.validate(job, "1.30", strict=True)


def test_its_command_is_one_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    (container,) = DOCUMENTS[1]["spec"]["template"]["spec"]["containers"]

    arguments = run_command.parse(build_parser("run"), container["command"][2:])

    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert arguments.or_resume
    assert str(arguments.run_dir.parent) in mounts
