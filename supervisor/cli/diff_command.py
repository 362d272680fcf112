"""Compare a model's forward pass in FP32 with BF16 or FP16, layer by layer.

FACTORY is a function or class of MODEL.py that returns the model when it is called without
arguments; SAMPLE.pt holds one input (a tensor, or a list, tuple or dict of them).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from supervisor.cli.entry_point import entry_point


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL.py:FACTORY")
    parser.add_argument("--input", metavar="SAMPLE.pt", type=Path, required=True)
    parser.add_argument("--dtype", choices=("bf16", "fp16"), default="bf16")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def execute(args: argparse.Namespace) -> int:
    from supervisor.cli.output import print_json

    compare = entry_point("diff", "supervisor.numerics.layer_diff", "diff_files")
    result = compare(args.model, args.input, args.dtype)
    if args.json:
        print_json(result.to_dict())
    else:
        print(result)
    return 0
