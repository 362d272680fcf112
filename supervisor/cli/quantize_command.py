"""Say what a tensor loses in a smaller number format, and what to do in FP32."""

from __future__ import annotations

import argparse
from pathlib import Path

from supervisor.cli.entry_point import entry_point


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "tensor", metavar="TENSOR.pt", type=Path, help="a tensor, or a dict or list of tensors"
    )
    parser.add_argument("--dtype", choices=("bf16", "fp16", "fp8_e4m3", "fp8_e5m2"), default="bf16")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def execute(args: argparse.Namespace) -> int:
    from supervisor.cli.output import print_json

    analyze = entry_point("quantize", "supervisor.numerics.quantization", "analyze_file")
    result = analyze(args.tensor, args.dtype)
    if args.json:
        print_json(result.to_dict())
    else:
        print(result)
    return 0
