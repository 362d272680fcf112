"""The manifests against the official schemas; some need `kubernetes-validate` (108 MB)."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from supervisor.cli.commands import run as run_command
from supervisor.cli.options.command_parser import build_parser
from supervisor.cli.options.ranks_options import ranks_of, take_operators_ranks

FOLDER = Path(__file__).parents[2] / "examples" / "scheduling"
DOCUMENTS: list[dict[str, Any]] = list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))
NODES: list[dict[str, Any]] = list(
    yaml.safe_load_all((FOLDER / "kubernetes-nodes.yaml").read_text())
)
VOLUME, PYTORCHJOB = yaml.safe_load_all((FOLDER / "pytorchjob.yaml").read_text())
SCHEMA = yaml.safe_load(Path(__file__).with_name("pytorchjob.schema.yaml").read_text())
SETS = [
    list(yaml.safe_load_all((FOLDER / name).read_text()))
    for name in ("jobset.yaml", "trainjob.yaml")
]
(_, JOBSET), (_, RUNTIME, TRAINJOB) = SETS
SCHEMAS = yaml.safe_load(Path(__file__).with_name("trainer.schema.yaml").read_text())
OPERATORS = {  # what the training operator gives to the second pod
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "8",
    "RANK": "1",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "training-master-0",
    "MASTER_PORT": "23456",
}
TYPES = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "training-master-0"},
    **PYTORCHJOB["spec"]["pytorchReplicaSpecs"]["Master"]["template"],
}
RELEASES = ("1.29", "1.30", "1.32", "1.34", "1.36")


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    "document", [*DOCUMENTS, *NODES, VOLUME, POD], ids=lambda document: document["kind"]
)
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


def faults(schema: Mapping[str, Any], value: Any, at: str = "") -> list[str]:
    """Where a document differs from what a custom resource's definition says."""
    if schema.get("x-kubernetes-int-or-string"):
        return [] if isinstance(value, (int, str)) else [at]
    if not isinstance(value, TYPES[schema["type"]]) or value not in schema.get("enum", [value]):
        return [at]
    if isinstance(value, list):
        return [fault for item in value for fault in faults(schema["items"], item, at + "[]")]
    if not isinstance(value, dict):
        return []
    known, others = schema.get("properties", {}), schema.get("additionalProperties")
    found = [f"{at}.{name}" for name in schema.get("required", ()) if name not in value]
    for name, part in value.items():
        own = known.get(name, others)
        if own is None:
            found.append(f"{at}.{name}")
        elif name != "metadata":  # the cluster's own
            found += faults(own, part, name)
    return found


def test_the_training_operator_would_take_its_job() -> None:
    wrong = copy.deepcopy(PYTORCHJOB)
    wrong["spec"]["runPolicy"]["cleanPodsPolicy"] = wrong["spec"].pop("pytorchReplicaSpecs")

    assert faults(SCHEMA, PYTORCHJOB) == []
    assert faults(SCHEMA, wrong) == ["spec.pytorchReplicaSpecs", "runPolicy.cleanPodsPolicy"]
    replicas = PYTORCHJOB["spec"]["pytorchReplicaSpecs"]
    assert replicas["Master"]["replicas"] == 1
    assert replicas["Master"]["template"] == replicas["Worker"]["template"]
    pod = replicas["Master"]["template"]["spec"]
    assert [container["name"] for container in pod["containers"]] == ["pytorch"]
    assert pod["terminationGracePeriodSeconds"] > 30
    claims = [v["persistentVolumeClaim"] for v in pod["volumes"] if "persistentVolumeClaim" in v]
    assert claims == [{"claimName": VOLUME["metadata"]["name"]}]


def container_of_the_job() -> dict[str, Any]:
    replica = PYTORCHJOB["spec"]["pytorchReplicaSpecs"]["Worker"]
    (container,) = replica["template"]["spec"]["containers"]
    return dict(container)


def test_what_the_training_operator_tells_its_pods_becomes_our_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    words = container_of_the_job()["args"]
    for name, value in OPERATORS.items():
        words = [word.replace(f"$({name})", value) for word in words]

    options = run_command.parse(build_parser("run"), words)

    launch = ranks_of(options)
    assert launch is not None
    assert (launch.nnodes, launch.node_rank, launch.nproc_per_node) == ("2", 1, "8")
    assert launch.rdzv_endpoint == "training-master-0:23456"
    assert options.or_resume


def pod(folder: Path, script: str) -> subprocess.Popen[bytes]:
    """Starts the container's command, where `supervisor` is this script."""
    supervisor = folder / "supervisor"
    supervisor.write_text(f"#!/bin/sh\n{script}\n")
    supervisor.chmod(0o755)
    container = container_of_the_job()
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    line = [*container["command"], *container["args"]]
    return subprocess.Popen(line, env=environment, cwd=folder)


@pytest.mark.parametrize(
    ("code", "told"), [(0, 0), (1, 1), (64, 64), (70, 70), (75, 143), (137, 137)]
)
def test_only_what_another_pod_can_go_on_with_is_told_as_retryable(
    tmp_path: Path, code: int, told: int
) -> None:
    with pod(tmp_path, f'echo "$@" > told; exit {code}') as process:
        assert process.wait(30.0) == told

    assert (tmp_path / "told").read_text().startswith("run --or-resume --run-dir /runs/training ")


def test_a_pod_that_is_taken_away_gives_its_supervisor_time_to_save(tmp_path: Path) -> None:
    script = (
        "trap 'sleep 0.5; touch saved; exit 75' TERM; touch begun; while :; do sleep 0.05; done"
    )
    with pod(tmp_path, script) as process:
        deadline = time.monotonic() + 30.0
        while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)

        assert process.wait(30.0) == 143

    assert (tmp_path / "saved").exists()


def set_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """The JobSet's own part of a JobSet, or of a runtime that makes one."""
    spec = document["spec"]
    return dict(spec["template"]["spec"] if "template" in spec else spec)


def job_of(document: Mapping[str, Any]) -> dict[str, Any]:
    (replicated,) = set_of(document)["replicatedJobs"]
    spec = replicated["template"]["spec"]
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "training"}, "spec": spec}


@pytest.mark.parametrize("document", [JOBSET, RUNTIME, TRAINJOB], ids=lambda d: d["kind"])
def test_kubeflow_and_jobset_would_take_theirs(document: dict[str, Any]) -> None:
    outer = copy.deepcopy(document)
    for replicated in set_of(outer).get("replicatedJobs", ()):
        replicated["template"]["spec"]["template"] = {}  # the next test looks at the pods

    assert faults(SCHEMAS[document["kind"]], outer) == []


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("document", [JOBSET, RUNTIME], ids=lambda d: d["kind"])
def test_a_cluster_would_take_their_jobs(document: dict[str, Any], release: str) -> None:
    validator = pytest.importorskip("kubernetes_validate")

    validator.validate(job_of(document), release, strict=True)


@pytest.mark.parametrize("document", [DOCUMENTS[1], NODES[-1], JOBSET, RUNTIME])
def test_each_exit_code_of_ours_is_treated_as_it_is_meant(document: dict[str, Any]) -> None:
    job = document if document["kind"] == "Job" else job_of(document)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    rules = job["spec"]["podFailurePolicy"]["rules"]

    by_code = {
        code: rule["action"]
        for rule in rules
        for code in rule.get("onExitCodes", {}).get("values", ())
    }

    assert by_code == {75: "Ignore", 64: "FailJob", 70: "FailJob"}
    names = {r["onExitCodes"]["containerName"] for r in rules if "onExitCodes" in r}
    assert names == {container["name"]}
    if document["kind"] != "Job":  # a job that has failed by these rules is not started again
        (rule,) = set_of(document)["failurePolicy"]["rules"]
        assert rule["action"] == "FailJobSet"
        assert rule["onJobFailureReasons"] == ["PodFailurePolicy"]


def test_a_trainjob_tells_its_pods_what_our_options_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "8",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "training-node-0-0.training",
        "PET_MASTER_PORT": "29400",
    }.items():
        monkeypatch.setenv(name, value)

    args = run_command.parse(build_parser("run"), TRAINJOB["spec"]["trainer"]["command"][2:])
    take_operators_ranks(args)
    launch = ranks_of(args)

    assert launch is not None
    assert (launch.nnodes, launch.nproc_per_node, launch.node_rank) == ("2", "8", 1)
    assert (launch.master_addr, launch.master_port) == ("training-node-0-0.training", 29400)
