"""The house of docs/architecture.md: who may import whom, where torch lives, who may patch it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "supervisor"

FLOORS: dict[str, int] = {
    "records": 1,
    "errors": 1,
    "version": 1,
    "settings": 1,
    "detectors": 2,
    "prediction": 2,
    "predictor": 2,
    "ladder": 2,
    "config": 2,
    "storage": 2,
    "training_state": 2,
    "source_check": 2,
    "pipeline": 3,
    "actions": 3,
    "report": 3,
    "numerics": 3,
    "fault_injection": 3,
    "parent": 4,
    "worker": 4,
    "analysis": 4,
    "testing": 4,
    "integrations": 5,
    "cli": 5,
    "__init__": 5,
}

NEIGHBOURS = {
    ("prediction", "detectors"): "the robust windows are the detectors'",
    ("predictor", "detectors"): "the robust windows are the detectors'",
    ("predictor", "prediction"): "the predictor's own parts",
    ("ladder", "detectors"): "the guard uses the detectors' robust windows",
    ("config", "storage"): "resolved files are written privately",
    ("training_state", "storage"): "state is written into checkpoints",
}
"""Rooms of one floor that may import each other, one way, with the reason."""

TORCH_ROOMS = {
    "training_state",
    "actions",
    "numerics",
    "fault_injection",
    "worker",
    "analysis",
    "testing",
    "integrations",
}

FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(module: str) -> str:
    """The room of `a.b.c` below the package; `config_files` is part of `config`."""
    first = module.split(".")[0]
    family = first.split("_")[0]
    return family if family in ("config", "ladder", "predictor") else first


def imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "supervisor":
                yield from (f"supervisor.{alias.name}" for alias in node.names)
            else:
                yield node.module


def own_room(path: Path) -> str:
    return room_of(".".join(path.relative_to(PACKAGE).with_suffix("").parts))


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_room_imports_only_lower_floors(path: Path) -> None:
    room = own_room(path)
    modules = [
        name for name in imports(ast.parse(path.read_text())) if name.startswith("supervisor.")
    ]

    rooms = {room_of(name.removeprefix("supervisor.")) for name in modules} - {room}

    strangers = {
        other
        for other in rooms
        if FLOORS[other] >= FLOORS[room] and (room, other) not in NEIGHBOURS
    }
    assert not strangers, f"{name_of(path)} on floor {FLOORS[room]} imports {strangers}"


def test_worker_and_parent_are_strangers() -> None:
    links = {
        (own_room(path), room_of(name.removeprefix("supervisor.")))
        for path in FILES
        for name in imports(ast.parse(path.read_text()))
        if name.startswith("supervisor.")
    }

    assert ("worker", "parent") not in links
    assert ("parent", "worker") not in links


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_torch_lives_only_in_its_rooms(path: Path) -> None:
    names = {name.split(".")[0] for name in imports(ast.parse(path.read_text()))}

    allowed = own_room(path) in TORCH_ROOMS and not name_of(path).startswith("analysis/backtest")

    assert "torch" not in names or allowed, f"{name_of(path)} imports torch"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_torch_is_patched_in_one_place_only(path: Path) -> None:
    name = name_of(path)

    patched = torch_assignments(ast.parse(path.read_text()))

    may_patch = name == "worker/instrument.py" or name.startswith("worker/patches_")
    assert may_patch or not patched, f"{name} assigns {patched}"


def torch_assignments(tree: ast.Module) -> list[str]:
    """Assignments to attributes of names that were imported from torch, `setattr` included."""
    bound = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias for alias in node.names if alias.name.split(".")[0] == "torch"]
            bound |= {alias.asname or "torch" for alias in names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            bound |= {alias.asname or alias.name for alias in node.names}
    found = []
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = [t for t in node.targets if isinstance(t, ast.Attribute)]
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            targets = [node.target] if isinstance(node.target, ast.Attribute) else []
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "setattr":
            targets = [node.args[0]]
        found += [ast.unparse(target) for target in targets if root_name(target) in bound]
    return found


def root_name(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def test_an_assignment_to_torch_is_recognised() -> None:
    source = "import torch\nfrom torch.optim import Adam\nAdam.step = 1\nsetattr(torch.nn, 'a', 2)"

    assert torch_assignments(ast.parse(source)) == ["Adam.step", "torch.nn"]
