"""Show what a tensor loses in a smaller number format, and what to keep in FP32.

TENSOR.pt is saved with torch.save: a tensor, a list or dict of tensors, or a state_dict.
"""

from __future__ import annotations

import argparse

from supervisor.cli.options import option_values


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tensor", metavar="TENSOR.pt", type=option_values.path)
    parser.add_argument("--dtype", choices=("bf16", "fp16", "fp8_e4m3", "fp8_e5m2"), default="bf16")
    option_values.add_plot(parser, "draw it (png, svg or pdf)")
    option_values.add_json(parser)


def execute(args: argparse.Namespace) -> int:
    from supervisor.numerics.model_files import load_tensors
    from supervisor.numerics.quantization import analyze_tensors

    tensors = load_tensors(args.tensor)
    result = analyze_tensors(tensors, args.dtype)
    if args.plot:
        from supervisor.numerics.number_format import format_of
        from supervisor.numerics.quantization import plot_magnitudes

        plot_magnitudes(result, tensors, format_of(args.dtype), args.plot)
    option_values.print_result(result, as_json=args.json)
    return 0
