"""Say what a tensor loses in a smaller number format, and what to do in FP32.

TENSOR.pt is made with torch.save: a tensor, a list or dict of tensors, or a state_dict.
"""

from __future__ import annotations

import argparse

from supervisor.cli import option_values
from supervisor.cli.entry_point import entry_point


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tensor", metavar="TENSOR.pt", type=option_values.path)
    parser.add_argument("--dtype", choices=("bf16", "fp16", "fp8_e4m3", "fp8_e5m2"), default="bf16")
    parser.add_argument(
        "--plot", metavar="PATH", type=option_values.path, help="draw it (png, svg or pdf)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def execute(args: argparse.Namespace) -> int:
    from supervisor.cli.output import print_json

    if args.plot is not None:
        option_values.check_output("--plot", args.plot, (".png", ".svg", ".pdf"))
    load_tensors = entry_point("quantize", "supervisor.numerics.sample_files", "load_tensors")
    analyze = entry_point("quantize", "supervisor.numerics.quantization", "analyze_tensors")
    tensors = load_tensors(args.tensor)
    result = analyze(tensors, args.dtype)
    if args.plot:
        plot = entry_point("quantize", "supervisor.numerics.quantization_plot", "plot_magnitudes")
        format_of = entry_point("quantize", "supervisor.numerics.number_format", "format_of")
        plot(result, tensors, format_of(args.dtype), args.plot)
    if args.json:
        print_json(result.to_dict())
    else:
        print(result)
    return 0
