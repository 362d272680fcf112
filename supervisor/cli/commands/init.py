"""Write a commented policy and config for a script, after a look at its source.

The script is read and never run. What is seen (mixed precision, GradScaler, reinforcement learning,
Lightning, Transformers, Accelerate, SLURM ...) decides what they build on.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from supervisor.cli.options import option_values
from supervisor.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "script", metavar="SCRIPT", type=option_values.path, help="the training script"
    )
    parser.add_argument(
        "--dir",
        metavar="DIR",
        type=option_values.path,
        default=Path(),
        help="where to write <script>.config.yaml and <script>.policy.yaml (default: here)",
    )
    parser.add_argument("--force", action="store_true", help="replace files that are there")
    option_values.add_json(parser)


def execute(args: argparse.Namespace) -> int:
    import os

    from supervisor.cli.script_look import MEANINGS, advice, config_text, look_at, policy_text

    script: Path = args.script
    if not script.is_file():
        raise UsageError(f"{script}: no such file: give the path of a Python script")
    traits = look_at(script, os.environ)
    config, policy = (args.dir / f"{script.stem}.{kind}.yaml" for kind in ("config", "policy"))
    texts = {
        config: config_text(script, traits),
        policy: policy_text(script, policy.name, traits),
    }
    for path in texts:
        if (path.exists() or path.is_symlink()) and not args.force:
            raise UsageError(f"{path}: is there already: give --force to replace it, or --dir")
        option_values.check_output("--dir", path)
    for path, text in texts.items():
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}: give another --dir") from error
    if args.json:
        option_values.print_json({"config": config, "policy": policy, "traits": traits})
        return 0
    for trait in traits:
        print(f"{trait.where}: {MEANINGS[trait.name]} ({trait.evidence})")
    if not traits:
        print(f"{script}: a plain loop: the defaults fit")
    print(f"\nwritten: {config}, {policy}\nnext:")
    for line in advice(script, config, policy, traits):
        print(f"  {line}")
    return 0
