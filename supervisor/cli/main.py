"""The console script ``supervisor``.

Only the requested command (`cli/options/command_parser.py`) is imported, and heavy packages only
inside its `execute`.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from supervisor.cli.options.command_parser import (
    COMMANDS,
    build_parser,
    load_command,
    summary_of,
)
from supervisor.errors import SupervisorError, UsageError

EXIT_USAGE = 64
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells say it
_NO_RIGHTS = (errno.EACCES, errno.EPERM, errno.EROFS)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code: 64 when nothing was started."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        _check_face()
        code = _dispatch(words)
        if sys.stdout is not None:  # it is where its file was closed before we began
            sys.stdout.flush()
        return code
    except SupervisorError as error:
        print(f"supervisor: error: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            print(file=sys.stderr)  # the terminal shows ^C: begin a new line for the prompt
        return EXIT_INTERRUPTED
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # so rich ends at a closed pipe
            return 0
        raise
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG and error.filename is not None:
            name = str(error.filename)
            print(
                f"supervisor: error: {name[:60]}...: the name is too long for this file system: "
                "give a shorter one",
                file=sys.stderr,
            )
            return EXIT_USAGE
        if error.errno in _NO_RIGHTS and error.filename is not None:
            print(
                f"supervisor: error: {error.filename}: {error.strerror}: give a path that you may "
                "use, or ask its owner",
                file=sys.stderr,
            )
            return EXIT_USAGE
        if not isinstance(error, BrokenPipeError):
            raise
        # The reader (`head`, `less`) has closed the pipe: write nothing more, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0 if words else EXIT_USAGE
    if words[0] in ("-V", "--version"):
        from supervisor.version import __version__

        print(f"training-supervisor {__version__}")
        return 0
    module, parser = load_command(words[0]), build_parser(words[0])
    parse = getattr(module, "parse", None)
    try:
        arguments = parse(parser, words[1:]) if parse else parser.parse_args(words[1:])
    except SystemExit as end:  # --help
        return int(end.code or 0)
    return int(module.execute(arguments))


def _overview() -> str:
    lines = [
        "usage: supervisor COMMAND ...",
        "",
        "Launches a PyTorch training, sees trouble coming, treats it, resumes it, explains it.",
        "",
        "commands:",
    ]
    for name in COMMANDS:
        lines.append(f"  {name:<12}{summary_of(name)}")
    lines += [
        "",
        "options:",
        "  -h, --help      show this; `supervisor COMMAND --help` shows a command's own options",
        "  -V, --version   show the version",
        "",
        "exit codes: 0 done, 64 usage error; each command's own: `supervisor COMMAND --help`",
        "NO_COLOR=1 in the environment switches colours off.",
    ]
    return "\n".join(lines)


def _check_face() -> None:
    """PyPI's `supervisor` (supervisord) has the same import name, so their files get mixed."""
    folder = Path(__file__).resolve().parent.parent
    face = sys.modules["supervisor"]
    if (folder / "supervisord.py").exists() or "check_source" not in getattr(face, "__all__", ()):
        raise UsageError(
            f"{folder}: another package of the import name `supervisor` (supervisord) is installed "
            "over this one: pip uninstall -y supervisor training-supervisor && "
            "pip install training-supervisor"
        )


if __name__ == "__main__":
    sys.exit(main())
