"""What `supervisor init` sees in a script, and what it writes."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from supervisor.errors import UsageError

_IMPORT = r"^[ \t]*(?:from|import) "
_RL = (
    "gymnasium|gym|pettingzoo|dm_env|envpool|procgen|stable_baselines3|torchrl|tianshou|rsl_rl|skrl"
)
_BY_REWARD = r"(?:PPO|GRPO|RLOO|OnlineDPO|Reward)\w+"
_FP16 = r"""\bfp16\s*=\s*True|\b(?:mixed_)?precision\s*=\s*['"]?(?:fp)?16(?:-mixed)?(?![\w-])"""
_BF16 = r"""\bbf16\s*=\s*True|\b(?:mixed_)?precision\s*=\s*['"]bf16(?:-mixed)?(?![\w-])"""
_SIGNS = (
    ("lightning", _IMPORT + r"(?:pytorch_)?lightning\b"),
    ("ignite", _IMPORT + r"ignite\b"),
    ("accelerate", _IMPORT + r"accelerate\b"),
    (
        "transformers",
        _IMPORT + r"trl\b|from transformers[\w.]* import [^\n(]*(?:\([^)]*)?Trainer\b",
    ),
    ("rl", _IMPORT + rf"(?:(?:{_RL})\b|ray\.rllib|trl import [^\n(]*(?:\([^)]*)?{_BY_REWARD})"),
    ("autocast", rf"\bautocast\(|{_FP16}|{_BF16}"),
    ("fp16", rf"\.half\(\)|\btorch\.(?:float16|half)\b|{_FP16}"),
    ("bf16", rf"\btorch\.bfloat16\b|{_BF16}"),
    ("scaler", rf"\bGradScaler\(|{_FP16}"),
    ("latents", r"^[ \t]*class \w*(?:VAE|Variational)\w*"),
    ("language_model", r"^[ \t]*class (?:\w*GPT\w*|\w*LanguageModel|\w*LM)\b|\w*LMHeadModel\b"),
    ("language_model", r"\w*For(?:CausalLM|MaskedLM|ConditionalGeneration)\b"),
    ("images", _IMPORT + r"(?:torchvision|timm)\b|\bConv2d\("),
    ("ranks", r"\binit_process_group\(|\bDistributedDataParallel\b|\bFullyShardedDataParallel\b"),
    ("ranks", r"\bfully_shard\b"),
    ("seeds", r"\btorch\.manual_seed\(|\bseed_everything\(|\bset_seed\("),
    ("slurm", r"""['"]SLURM_\w*|""" + _IMPORT + r"submitit\b"),
)
"""Trait → what it is seen by, in code without comments and docstrings."""
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
        code = _code(path.read_bytes(), nodes)
        for name, sign in _SIGNS:
            if name not in found and (seen_at := re.search(sign, code, re.MULTILINE)):
                where = f"{path.name}:{code.count(chr(10), 0, seen_at.end()) + 1}"
                found[name] = Trait(name=name, where=where, evidence=seen_at[0].strip())
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


def _code(text: bytes, nodes: list[ast.AST]) -> str:
    """A file without its comments and docstrings, line by line."""
    lines = [line.partition("#")[0] for line in text.decode(errors="replace").splitlines()]
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[number] = ""
    return "\n".join(lines)


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
