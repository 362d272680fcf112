"""What `supervisor init` sees in a script, and what it writes."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from supervisor.errors import UsageError
from supervisor.source_check.scope import Names, dotted, last_name

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


_BASES = (("rl", "rlhf"), ("latents", "vae"), ("language_model", "llm"), ("scaler", "fp16"))
"""Trait → shipped policy or config, the one that changes most first."""

_CALLBACKS = {
    "lightning": "Trainer(callbacks=[lightning.LightningCallback()])",
    "transformers": "Trainer(callbacks=[transformers.TransformersCallback()])",
    "accelerate": "Accelerator(log_with=accelerate.AccelerateTracker())",
    "ignite": "ignite.IgniteHandler().attach(trainer, evaluator)",
}
"""Trait → what may be added to the script, with its module of `supervisor.integrations`."""

_CONFIG = """
# `# key: value` lines are possible changes; docs/configuration.md has every key.
defaults: [{base}]{because}

# seed: 0                    # {seeds}

checkpoint:
  max_overhead: 0.01         # share of the time that checkpoints may cost; decides how often
  keep_last: 3               # and the newest stable one, always
  # every_steps: 500         # at fixed steps instead
{slurm}
watchdog:
  grace_s: 30.0              # after SIGTERM, for a checkpoint
  # hang_timeout_s: 600.0    # default: 60 s or 10 times the slowest steps, whichever is more

restart:
  crash_limit: 3             # crashes without progress until the run is given up
{more}
# metrics_port: 9400         # for Prometheus (docs/metrics.md)
# notify:
#   webhook: env:NOTIFY_URL  # who is told of treatments, restarts and the end
"""

_POLICY = """
# `supervisor backtest RUN --policy {name}` tries a change on a recorded run.
defaults: [{base}]{because}

# observe_only: true         # change nothing, and say what would have been done: for a first run

warn_threshold: {warn}          # risk from which a checkpoint is saved
alarm_threshold: {alarm}         # risk from which the training is treated
{more}
budget:
  per_hour: {hourly}               # treatments; more: the next rung, then stop
  max_rollbacks: {rollbacks}           # without healthy steps between them
"""

_SCALER_CONFIG = """
detectors:
  loss_scale:                # a GradScaler beside it: falling scales are watched closely
    warn_below: 256.0        # healthy runs settle at 1,024 and more
    window: 100
"""
_SCALER_POLICY = """
by_cause:
  loss_scale: [fp32_fallback]  # numbers that leave FP16 are no matter of the learning rate
"""
_RL_CONFIG = """
in_environment: true         # data come from the policy: loss and gradient tell little
"""
_SLURM_CONFIG = """
preemption:
  leave_before_s: 60.0       # the run leaves so long before the job's time limit
"""


def base_of(traits: Collection[str], *, config: bool) -> tuple[str, str]:
    """Returns the shipped file to build on, and the trait that is the reason."""
    for trait, base in _BASES:
        if trait in traits:
            return base, trait
    return ("vision", "images") if config and "images" in traits else ("default", "")


def config_text(script: Path, traits: Sequence[Trait]) -> str:
    """Returns a commented config for the script."""
    names = {trait.name for trait in traits}
    base, reason = base_of(names, config=True)
    more = _SCALER_CONFIG if "scaler" in names and base != "fp16" else ""
    more += _RL_CONFIG if "rl" in names and not _is_language(names) else ""
    seeds = "the script seeds itself" if "seeds" in names else "the script sets none: seeds all"
    text = _CONFIG.format(
        base=base,
        because=_because(reason),
        seeds=seeds,
        slurm=_SLURM_CONFIG if "slurm" in names else "",
        more=more,
    )
    return _head("Config", script, traits) + text


def policy_text(script: Path, name: str, traits: Sequence[Trait]) -> str:
    """Returns a commented policy for the script, with the figures of what it builds on.

    Args:
        script: for the head.
        name: of the file to write.
        traits: of the script.
    """
    from supervisor.config import load_policy

    names = {trait.name for trait in traits}
    base, reason = base_of(names, config=False)
    policy = load_policy(base)
    text = _POLICY.format(
        name=name,
        base=base,
        because=_because(reason),
        warn=policy.warn_threshold,
        alarm=policy.alarm_threshold,
        hourly=policy.budget.per_hour,
        rollbacks=policy.budget.max_rollbacks,
        more=_SCALER_POLICY if "scaler" in names and base != "fp16" else "",
    )
    return _head("Policy", script, traits) + text


def advice(script: Path, config: Path, policy: Path, traits: Sequence[Trait]) -> list[str]:
    """Returns what to do next, the line that starts the training first."""
    names = {trait.name for trait in traits}
    options = f"--config {shlex.quote(str(config))} --policy {shlex.quote(str(policy))}"
    if "ranks" in names:
        options += " --nproc-per-node gpu"
    if "slurm" in names:
        folder = f'"runs/{script.stem}-$SLURM_JOB_ID"'
        options = f"--or-resume --run-dir {folder} {options}"
    lines = [f"supervisor run {options} {shlex.quote(str(script))}"]
    for name in _CALLBACKS:
        if name in names:
            lines.append(
                f"optional, from supervisor.integrations import {name}: {_CALLBACKS[name]}"
            )
    if "slurm" in names:
        lines.append("a job script that queues itself again: examples/scheduling/slurm.sbatch")
    return lines


def _is_language(names: Collection[str]) -> bool:
    """RL fine-tuning of a language model has prompts, and no environment."""
    return "language_model" in names or "transformers" in names


def _because(reason: str) -> str:
    return f"  # {MEANINGS[reason]}" if reason else ""


def _head(what: str, script: Path, traits: Sequence[Trait]) -> str:
    """The first lines: what was seen, on one line each whatever the script holds."""
    lines = [f"# {what} for {script.name}, by `supervisor init` from its source; nothing was run."]
    lines += [f"# {trait.where}: {MEANINGS[trait.name]} ({trait.evidence})" for trait in traits]
    return "\n".join(" ".join(line.split()) for line in lines) + "\n"
