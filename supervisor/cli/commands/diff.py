"""Compare a model's forward pass in FP32 with BF16 or FP16, layer by layer.

FACTORY is a function or class in MODEL.py that returns the model when called without arguments.
SAMPLE.pt holds one input, saved with torch.save: a tensor, a tuple or list of positional arguments,
or a dict of keyword arguments.
"""

from __future__ import annotations

import argparse
import contextlib
import sys

from supervisor.cli.options import option_values


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL.py:FACTORY")
    parser.add_argument("--input", metavar="SAMPLE.pt", type=option_values.path, required=True)
    parser.add_argument("--dtype", choices=("bf16", "fp16"), default="bf16")
    parser.add_argument(
        "--autocast",
        action="store_true",
        help="compare with torch.autocast instead of a model converted as a whole",
    )
    option_values.add_plot(parser, "draw it (png, svg or pdf)")
    option_values.add_json(parser)


def execute(args: argparse.Namespace) -> int:
    from supervisor.numerics.layer_diff import layer_diff
    from supervisor.numerics.model_files import load_model, load_sample

    # What the user's code prints must not mix with the document on standard output.
    with contextlib.redirect_stdout(sys.stderr):
        sample = load_sample(args.input)
        model = load_model(args.model)
        result = layer_diff(model, sample, dtype=args.dtype, autocast=args.autocast)
    if args.plot:
        result.plot(args.plot)
    option_values.print_result(result, as_json=args.json)
    return 0
