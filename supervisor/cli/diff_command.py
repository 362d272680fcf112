"""Compare a model's forward pass in FP32 with BF16 or FP16, layer by layer.

FACTORY is a function or class of MODEL.py that returns the model when it is called without
arguments; SAMPLE.pt holds one input, made with torch.save: a tensor, a tuple or list of arguments,
or a dict of keyword arguments.
"""

from __future__ import annotations

import argparse
import contextlib
import sys

from supervisor.cli import option_values
from supervisor.cli.entry_point import entry_point


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL.py:FACTORY")
    parser.add_argument("--input", metavar="SAMPLE.pt", type=option_values.path, required=True)
    parser.add_argument("--dtype", choices=("bf16", "fp16"), default="bf16")
    parser.add_argument(
        "--autocast",
        action="store_true",
        help="compare with torch.autocast instead of a model converted as a whole",
    )
    parser.add_argument(
        "--plot", metavar="PATH", type=option_values.path, help="draw it (png, svg or pdf)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def execute(args: argparse.Namespace) -> int:
    from supervisor.cli.output import print_json

    if args.plot is not None:
        option_values.check_output("--plot", args.plot, (".png", ".svg", ".pdf"))
    load_model = entry_point("diff", "supervisor.numerics.model_factory", "load_model")
    load_sample = entry_point("diff", "supervisor.numerics.sample_files", "load_sample")
    layer_diff = entry_point("diff", "supervisor.numerics.layer_diff", "layer_diff")
    # What the user's code prints must not mix with the one document on standard output.
    with contextlib.redirect_stdout(sys.stderr):
        sample = load_sample(args.input)
        model = load_model(args.model)
        result = layer_diff(model, sample, dtype=args.dtype, autocast=args.autocast)
    if args.plot:
        result.plot(args.plot)
    if args.json:
        print_json(result.to_dict())
    else:
        print(result)
    return 0
