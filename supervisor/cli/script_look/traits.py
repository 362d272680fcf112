"""What a training script uses, seen in its source; nothing of it is imported or run."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from supervisor.errors import UsageError
from supervisor.source_check.names import Names, dotted, last_name

RL_LIBRARIES = frozenset(
    {
        *("gymnasium", "gym", "pettingzoo", "dm_env", "envpool", "procgen", "stable_baselines3"),
        *("torchrl", "tianshou", "cleanrl_utils", "rsl_rl", "pfrl", "skrl"),
    }
)
_TRL_BY_REWARD = ("PPO", "GRPO", "RLOO", "OnlineDPO", "Reward")
_LANGUAGE_MODELS = ("LMHeadModel", "ForCausalLM", "ForMaskedLM", "ForConditionalGeneration")
_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "fully_shard")
_PRECISIONS = ("precision", "mixed_precision")
_SPELLINGS = {
    "fp16": ("16", "16-mixed", "fp16", "fp16-mixed"),
    "bf16": ("bf16", "bf16-mixed"),
}
MOST_FILES = 50
"""The script and modules beside it that are looked at; more are a library."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trait:
    """One thing that a script uses.

    Attributes:
        name: one of `MEANINGS`.
        where: file and line, or the environment.
        evidence: the words that say so.
    """

    name: str
    where: str
    evidence: str


MEANINGS: Mapping[str, str] = {
    "lightning": "Lightning trains",
    "transformers": "the Trainer of Transformers or TRL trains",
    "accelerate": "Accelerate",
    "ignite": "Ignite trains",
    "rl": "reinforcement learning: the level of the loss says little",
    "autocast": "mixed precision",
    "fp16": "FP16: numbers may leave the format",
    "bf16": "BF16",
    "scaler": "a GradScaler: single overflows are normal",
    "latents": "a model with latents: its posterior may collapse",
    "language_model": "a language model: heavy-tailed losses",
    "images": "images",
    "ranks": "several ranks",
    "seeds": "the script seeds itself",
    "slurm": "SLURM",
}
"""Trait → what it means."""


def look_at(script: Path, environment: Mapping[str, str]) -> list[Trait]:
    """Returns the traits of a script and of the modules beside it that it imports.

    Args:
        script: a Python file.
        environment: of this process; under SLURM it tells.

    Raises:
        UsageError: the script cannot be read, or is not Python.
    """
    found: dict[str, Trait] = {}
    waiting, seen = [script], {script.resolve()}
    while waiting:
        path = waiting.pop(0)
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError) as error:
            if path != script:
                continue
            why = getattr(error, "strerror", None) or getattr(error, "msg", None) or error
            line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
            raise UsageError(f"{path}{line}: {why}: give a Python script that runs") from error
        nodes = list(ast.walk(tree))
        for name, node, evidence in _traits(nodes, Names(nodes)):
            where = f"{path.name}:{getattr(node, 'lineno', 1)}"
            found.setdefault(name, Trait(name=name, where=where, evidence=evidence))
        for other in _beside(nodes, script.parent):
            if other.resolve() not in seen and len(seen) < MOST_FILES:
                seen.add(other.resolve())
                waiting.append(other)
    if "SLURM_JOB_ID" in environment:
        found["slurm"] = Trait(name="slurm", where="environment", evidence="SLURM_JOB_ID")
    return [found[name] for name in MEANINGS if name in found]


def _beside(nodes: list[ast.AST], folder: Path) -> Iterator[Path]:
    """The files in the script's folder that are imported."""
    for node in nodes:
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = f"{node.module}." if node.module else ""
            names = [package.rstrip("."), *(f"{package}{alias.name}" for alias in node.names)]
        for name in names:
            place = folder.joinpath(*name.split("."))
            for path in (place.with_suffix(".py"), place / "__init__.py"):
                if name and path.is_file():
                    yield path


_Found = Iterator[tuple[str, ast.AST, str]]


def _traits(nodes: list[ast.AST], names: Names) -> _Found:
    for node in nodes:
        yield from _OF_NODE.get(type(node), _nothing)(node, names)


def _nothing(node: ast.AST, names: Names) -> _Found:
    return iter(())


def _of_import(node: ast.AST, names: Names) -> _Found:
    modules: list[str] = []
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and not node.level:
        modules = [f"{node.module}.{alias.name}" for alias in node.names]
    for module in modules:
        root, _, rest = module.partition(".")
        last = module.rpartition(".")[2]
        if root in ("lightning", "pytorch_lightning"):
            yield "lightning", node, root
        if root == "ignite":
            yield "ignite", node, root
        if root == "accelerate":
            yield "accelerate", node, root
        if root == "trl" or (root == "transformers" and "Trainer" in last):
            yield "transformers", node, module
        if root in RL_LIBRARIES or (root == "ray" and rest.startswith("rllib")):
            yield "rl", node, root
        if root == "trl" and last.startswith(_TRL_BY_REWARD):
            yield "rl", node, module
        if root == "transformers" and last.endswith(_LANGUAGE_MODELS):
            yield "language_model", node, module
        if root in ("torchvision", "timm"):
            yield "images", node, root
        if root == "submitit":
            yield "slurm", node, root


def _of_call(node: ast.AST, names: Names) -> _Found:
    assert isinstance(node, ast.Call)
    name = last_name(node.func)
    if name == "autocast":
        yield "autocast", node, ast.unparse(node.func)
    if name == "GradScaler":
        yield "scaler", node, ast.unparse(node.func)
    if name == "half" and not node.args:
        yield "fp16", node, f"{ast.unparse(node.func)[-40:]}()"
    if name in ("init_process_group", *_WRAPPERS):
        yield "ranks", node, name
    # A generator of its own is no seed of the whole script.
    if name in ("seed_everything", "set_seed") or dotted(node.func) == "torch.manual_seed":
        yield "seeds", node, name
    if name in _LANGUAGE_MODELS or "ForCausalLM" in ast.unparse(node.func):
        yield "language_model", node, ast.unparse(node.func)
    if name.startswith("Conv2d"):
        yield "images", node, name
    for keyword in node.keywords:
        told = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
        text = f"{keyword.arg}={told!r}"
        for kind in ("fp16", "bf16"):
            is_set = keyword.arg == kind and told is True
            is_said = keyword.arg in _PRECISIONS and str(told) in _SPELLINGS[kind]
            if is_set or is_said:
                yield kind, node, text
                yield "autocast", node, text
                if kind == "fp16":
                    yield "scaler", node, f"{text} (made by the framework)"


def _of_attribute(node: ast.AST, names: Names) -> _Found:
    resolved = names.resolve(node)
    if resolved in ("torch.float16", "torch.half"):
        yield "fp16", node, resolved
    if resolved == "torch.bfloat16":
        yield "bf16", node, resolved
    if isinstance(node, ast.Attribute) and node.attr in _WRAPPERS:
        yield "ranks", node, node.attr


def _of_class(node: ast.AST, names: Names) -> _Found:
    assert isinstance(node, ast.ClassDef)
    if "VAE" in node.name or "Variational" in node.name:
        yield "latents", node, f"class {node.name}"
    if "GPT" in node.name or node.name.endswith(("LanguageModel", "LM")):
        yield "language_model", node, f"class {node.name}"


def _of_constant(node: ast.AST, names: Names) -> _Found:
    assert isinstance(node, ast.Constant)
    if isinstance(node.value, str) and node.value.startswith("SLURM_"):
        yield "slurm", node, node.value


_OF_NODE: Mapping[type[ast.AST], Callable[[ast.AST, Names], _Found]] = {
    ast.Import: _of_import,
    ast.ImportFrom: _of_import,
    ast.Call: _of_call,
    ast.Attribute: _of_attribute,
    ast.ClassDef: _of_class,
    ast.Constant: _of_constant,
}
