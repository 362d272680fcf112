"""The house of docs/architecture.md: who may import whom, where torch lives, who may patch it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "supervisor"

FLOORS: dict[str, int] = {
    "codes": 1,
    "device_health": 1,
    "held_memory": 1,
    "records": 1,
    "events": 1,
    "errors": 1,
    "masking": 1,
    "ranks": 1,
    "version": 1,
    "begin": 1,
    "own_process": 1,
    "uncollected": 1,
    "unwarned": 1,
    "by_identity": 1,
    "function_arguments": 1,
    "settings": 1,
    "risk_lines": 1,
    "table": 1,
    "detectors": 2,
    "prediction": 2,
    "ladder": 2,
    "config": 2,
    "storage": 2,
    "training_state": 2,
    "source_check": 2,
    "agreement": 2,
    "shortfalls": 2,
    "first_lines": 3,
    "pipeline": 3,
    "actions": 3,
    "report": 3,
    "step_logs": 3,
    "numerics": 3,
    "fault_injection": 3,
    "parent": 4,
    "worker": 4,
    "agent": 4,
    "analysis": 4,
    "testing": 4,
    "notebook": 4,
    "cli": 5,
    "integrations": 5,
    "__init__": 5,
}

NEIGHBOURS = {
    ("records", "codes"): "the words of its fields",
    ("held_memory", "settings"): "the share that it may take",
    ("events", "codes"): "the words of its fields",
    ("own_process", "ranks"): "the place that the environment tells",
    ("function_arguments", "errors"): "what it raises",
    ("begin", "own_process"): "what python had loaded is noted there",
    ("risk_lines", "settings"): "made from a policy",
    ("report", "first_lines"): "it begins with them",
    ("prediction", "detectors"): "the robust windows are the detectors'",
    ("ladder", "detectors"): "the guard uses the detectors' robust windows",
    ("config", "storage"): "resolved files are written privately",
    ("testing", "worker"): "a kind of mistake is checked by those that watch a training",
    ("training_state", "storage"): "state is written into checkpoints",
}
"""Rooms of one floor that may import each other, one way, with the reason."""

SUB_ROOMS: dict[str, tuple[str, ...]] = {
    "worker": (
        "core",
        "outside_draws",
        "process",
        "gradients",
        "probes",
        "random_state",
        "healing",
        "ranks",
        "samples",
        "script_state",
        "files",
        "reads",
        "loading",
        "regions",
        "checkpoints",
        "treatment",
        "judging",
        "corruption",
        "compute_check",
        "inspection",
        "step_record",
        "mistakes/evidence",
        "mistakes/kinds",
        "mistakes",
    ),
    "detectors": ("statistics", "base"),
    "storage": ("files", "run", "script_files", "checkpoints", "steps", "journal", "cases"),
    "report": ("facts", "incidents", "curves"),
    "cli": ("options", "overview", "watch", "serve", "completion", "script_look", "commands"),
    "parent": ("terminal", "notices", "process", "metrics", "watching", "restarts", "nodes"),
    "analysis": (
        "trial_run",
        "trail",
        "verify",
        "outcome",
        "drill",
        "doctor",
        "backtest",
        "explain",
        "analyze",
    ),
}
"""The rooms within a room, from the lowest up; what lies beside them is above them all."""

TORCH_ROOMS = {
    "training_state",
    "actions",
    "numerics",
    "fault_injection",
    "worker",
    "agent",
    "analysis",
    "testing",
}

FILES = sorted(PACKAGE.rglob("*.py"))
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}


def room_of(module: str) -> str:
    """The room of `a.b.c` below the package; `config_files` is part of `config`."""
    first = module.split(".")[0]
    family = first.split("_")[0]
    return family if family in ("config", "predictor") else first


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


def rooms_used(path: Path) -> set[str]:
    """The other rooms that a file imports, at its top or inside functions."""
    names = [name for name in imports(TREES[path]) if name.startswith("supervisor.")]
    return {room_of(name.removeprefix("supervisor.")) for name in names} - {own_room(path)}


def modules_used(path: Path) -> set[Path]:
    """The other files of the package that a file imports, at its top or inside functions."""
    used = {as_file(name) for name in imported_names(TREES[path])}
    return {file for file in used if file is not None} - {path}


def users(path: Path, uses: dict[Path, set[Path]]) -> set[Path]:
    return {other for other, used in uses.items() if path in used}


def imported_names(tree: ast.Module) -> Iterator[str]:
    """Modules that are imported, and ``module.name`` of each name imported from one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def as_file(module: str) -> Path | None:
    path = PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py")
    return path if path in TREES else None


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def test_a_room_imports_only_lower_floors() -> None:
    broken = {
        f"{name_of(path)} on floor {FLOORS[own_room(path)]} imports {room}"
        for path in FILES
        for room in rooms_used(path)
        if FLOORS[room] >= FLOORS[own_room(path)] and (own_room(path), room) not in NEIGHBOURS
    }

    assert not broken


def sub_room(path: Path) -> str:
    """The room within a room where a file lies; "" for one beside the rooms."""
    name = str(path.relative_to(PACKAGE / own_room(path)).with_suffix(""))
    fitting = [room for room in SUB_ROOMS[own_room(path)] if f"{name}/".startswith(f"{room}/")]
    return max(fitting, key=len, default="")


def height(path: Path) -> int:
    rooms = SUB_ROOMS[own_room(path)]
    return rooms.index(sub_room(path)) if sub_room(path) else len(rooms)


def test_a_room_within_a_room_imports_only_those_below() -> None:
    files = [path for path in FILES if own_room(path) in SUB_ROOMS and path.name != "__init__.py"]

    broken = {
        f"{name_of(path)} imports {name_of(used)}"
        for path in files
        for used in modules_used(path)
        if own_room(used) == own_room(path) and height(used) > height(path)
    }

    assert not broken


def test_every_folder_of_a_room_with_rooms_is_one_of_them() -> None:
    folders = {
        str(path.parent.relative_to(PACKAGE / room))
        for room in SUB_ROOMS
        for path in (PACKAGE / room).rglob("*.py")
    }

    assert folders - {"."} <= {room for rooms in SUB_ROOMS.values() for room in rooms}


def test_no_room_holds_more_files_than_can_be_overlooked() -> None:
    folders = {path.parent for path in FILES}
    crowded = {str(f.relative_to(PACKAGE)) for f in folders if len(list(f.glob("*.py"))) > 26}

    assert not crowded


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports for annotations and inside functions count too: a circle is one noun in two files."""
    left = {path: modules_used(path) for path in FILES}
    while ends := {path for path in left if not left[path] & left.keys() or not users(path, left)}:
        left = {path: used for path, used in left.items() if path not in ends}

    assert {name_of(path) for path in left} == set()


def test_worker_and_parent_are_strangers() -> None:
    links = {(own_room(path), room) for path in FILES for room in rooms_used(path)}

    assert ("worker", "parent") not in links
    assert ("parent", "worker") not in links


def test_torch_lives_only_in_its_rooms() -> None:
    users = {path for path in FILES if "torch" in {n.split(".")[0] for n in imports(TREES[path])}}

    strangers = {name_of(path) for path in users if own_room(path) not in TORCH_ROOMS}

    assert not strangers
    assert not {name_of(path) for path in users if name_of(path).startswith("analysis/backtest")}


def test_only_files_of_patches_patch_torch_and_python() -> None:
    patching = {path for path in FILES if torch_assignments(TREES[path])}
    patching |= {path for path in FILES if python_assignments(TREES[path])}

    assert {name_of(path) for path in patching if not path.name.startswith("patches_")} == set()


def python_assignments(tree: ast.Module) -> list[str]:
    """Assignments to functions of Python's modules; what `sys` keeps of a program is none."""
    ours = sys.stdlib_module_names - {"sys", "__future__"}
    bound = {
        alias.asname or alias.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name.split(".")[0] in ours
    }
    return [text for text, root in assigned(tree) if root in bound]


def assigned(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Attributes that a file assigns to, `setattr` included, with the name that they begin with."""
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            each = [t.elts if isinstance(t, ast.Tuple) else [t] for t in node.targets]
            targets = [t for several in each for t in several if isinstance(t, ast.Attribute)]
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            targets = [node.target] if isinstance(node.target, ast.Attribute) else []
        elif isinstance(node, ast.Call) and root_name(node.func) == "setattr":
            targets = [node.args[0]]
        yield from ((ast.unparse(target), root_name(target)) for target in targets)


def torch_assignments(tree: ast.Module) -> list[str]:
    """Assignments to attributes of names that were imported from torch, `setattr` included.

    Other names that a file gives to what it imported (`cls: Any = torch.nn.Module`) count too.
    """
    bound = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias for alias in node.names if alias.name.split(".")[0] == "torch"]
            bound |= {alias.asname or "torch" for alias in names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            bound |= {alias.asname or alias.name for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and root_name(node.value) in bound:
            bound |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            bound |= {node.target.id} if node.value and root_name(node.value) in bound else set()
    return [text for text, root in assigned(tree) if root in bound]


def root_name(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def test_an_assignment_to_torch_is_recognised() -> None:
    source = "import torch\nfrom torch.optim import Adam\nAdam.step = 1\nsetattr(torch.nn, 'a', 2)"

    aliased = "from torch.utils import data\nkind: Any = data.DataLoader\nkind.a, x.b = 1, 2"

    assert torch_assignments(ast.parse(source)) == ["Adam.step", "torch.nn"]
    assert torch_assignments(ast.parse(aliased)) == ["kind.a"]


def test_an_assignment_to_python_is_recognised() -> None:
    source = "import os, sys\nos.fork = f\nsetattr(os, name, f)\nsys.argv = []\nself.os = 1"

    assert python_assignments(ast.parse(source)) == ["os.fork", "os"]


OF_A_RANK = {"alive", "log", "rank_journal", "replayed", "stacks", "steps", "tape", "trail"}
OF_A_RANK |= {"load_exit_note", "save_exit_note", "SetAside", "Attempt"}
"""Methods and functions whose last positional argument is a rank."""


def test_no_rank_is_written_as_a_number() -> None:
    """A reader of one rank says which it means (`FIRST_RANK`), so that several can follow."""
    found = {
        f"{name_of(path)}:{node.lineno} {ast.unparse(node)}"
        for path in FILES
        for node in ast.walk(TREES[path])
        if is_numbered_rank(node)
    }

    assert not found


def is_numbered_rank(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and re.search(r"\brank_0\b[./]", node.value) is not None
    if isinstance(node, ast.arguments):
        named = [*node.posonlyargs, *node.args][-len(node.defaults) or None :]
        pairs = [*zip(named, node.defaults, strict=False)]
        pairs += [(a, d) for a, d in zip(node.kwonlyargs, node.kw_defaults, strict=True) if d]
        return any(a.arg == "rank" and isinstance(d, ast.Constant) for a, d in pairs)
    if not isinstance(node, ast.Call):
        return False
    by_name = any(k.arg == "rank" and is_number(k.value) for k in node.keywords)
    called = node.func.attr if isinstance(node.func, ast.Attribute) else root_name(node.func)
    is_of_a_rank = called in OF_A_RANK and root_name(node.func) != "math"
    return by_name or (is_of_a_rank and bool(node.args) and is_number(node.args[-1]))


def is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int)


def test_a_rank_that_is_a_number_is_recognised() -> None:
    source = "run.steps(0); f(rank=0); open('x/rank_0.log'); run.log(n, 1); run.steps(LEAD_RANK)"

    found = [node for node in ast.walk(ast.parse(source)) if is_numbered_rank(node)]

    assert len(found) == 4
    assert is_numbered_rank(ast.parse("def f(rank: int = 0): ...").body[0].args)  # type: ignore[attr-defined]
