"""The manifest against the official schemas, where `kubernetes-validate` (108 MB) is installed."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from supervisor.cli.commands import run as run_command
from supervisor.cli.options.command_parser import build_parser
from supervisor.cli.options.ranks_options import ranks_of

FOLDER = Path(__file__).parents[2] / "examples" / "scheduling"
DOCUMENTS: list[dict[str, Any]] = list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))
NODES: list[dict[str, Any]] = list(
    yaml.safe_load_all((FOLDER / "kubernetes-nodes.yaml").read_text())
)
RELEASES = ("1.29", "1.30", "1.32", "1.34", "1.36")


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("document", [*DOCUMENTS, *NODES], ids=lambda document: document["kind"])
def test_a_cluster_would_take_it(document: dict[str, Any], release: str) -> None:
    validator = pytest.importorskip("kubernetes_validate")

    validator.validate(document, release, strict=True)


def test_a_typing_error_would_be_seen() -> None:
    validator = pytest.importorskip("kubernetes_validate")
    job = copy.deepcopy(DOCUMENTS[1])
    job["spec"]["template"]["spec"]["terminationGracePeriod"] = 60

    with pytest.raises(validator.ValidationError):
        validator.validate(job, "1.30", strict=True)


@pytest.mark.parametrize("documents", [DOCUMENTS, NODES], ids=["one node", "nodes"])
def test_its_command_is_one_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, documents: list[dict[str, Any]]
) -> None:
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    (container,) = documents[-1]["spec"]["template"]["spec"]["containers"]
    words = [word.replace("$(NODE_RANK)", "1") for word in container["command"][2:]]

    arguments = run_command.parse(build_parser("run"), words)

    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert arguments.or_resume
    assert str(arguments.run_dir.parent) in mounts


def test_its_pods_meet_by_the_names_that_the_service_gives_them() -> None:
    _, service, job = NODES
    spec = job["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]

    options = run_command.parse(
        build_parser("run"),
        [word.replace("$(NODE_RANK)", "1") for word in [*container["command"][2:-1], "-m", "json"]],
    )

    assert spec["completions"] == spec["parallelism"] == int(options.nnodes)
    assert pod["subdomain"] == service["metadata"]["name"]
    first = f"{job['metadata']['name']}-0.{pod['subdomain']}:29400"
    assert options.rdzv_endpoint == first
    assert service["spec"]["publishNotReadyAddresses"]
    assert ranks_of(options) is not None
