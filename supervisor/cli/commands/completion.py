"""Print what a shell needs to complete commands, options, policies, keys and runs.

bash   eval "$(supervisor completion bash)"         in ~/.bashrc
zsh    eval "$(supervisor completion zsh)"          in ~/.zshrc, after compinit
fish   supervisor completion fish > ~/.config/fish/completions/supervisor.fish
"""

from __future__ import annotations

import argparse

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help="bash, zsh or fish")
    parser.add_argument(
        "--for",
        dest="words",
        metavar="WORD",
        nargs=argparse.REMAINDER,
        help="what that script asks for: the words typed so far",
    )


def execute(args: argparse.Namespace) -> int:
    from supervisor.cli.completion import SHELLS as SCRIPTS
    from supervisor.cli.completion import answer

    if args.words is None:
        print(SCRIPTS[args.shell], end="")
    else:
        print(*answer(args.shell, args.words), sep="\n")
    return 0
