"""``python -m supervisor.report RUN``: writes the report of a run and prints where it lies."""

from __future__ import annotations

import sys
from pathlib import Path

from supervisor.report.write import write_report


def main(arguments: list[str]) -> int:
    """Returns 0, or 64 when there is no such directory."""
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        given = " ".join(arguments) or "nothing"
        print(
            f"supervisor: error: {given}: no run directory: give the one that `supervisor run`"
            " printed",
            file=sys.stderr,
        )
        return 64
    for path in write_report(arguments[0]).values():
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
