"""The config and the policy that `supervisor init` writes: short, with a reason on every line."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from pathlib import Path

from supervisor.cli.script_look.traits import MEANINGS, Trait

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
