"""``python -m supervisor.report RUN``: writes the report of a run and prints where it lies.

With ``--live`` before RUN it only draws the pictures of a run that is still going on, while the
processor is idle.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from supervisor.report.write import write_pictures, write_report


def main(arguments: list[str]) -> int:
    """Returns 0, or 64 when there is no such directory."""
    is_live = arguments[:1] == ["--live"]
    if is_live:
        os.nice(19)
        arguments = arguments[1:]
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        given = " ".join(arguments) or "nothing"
        print(
            f"supervisor: error: {given}: no run directory: give the one that `supervisor run`"
            " printed",
            file=sys.stderr,
        )
        return 64
    write = write_pictures if is_live else write_report
    for path in write(arguments[0]).values():
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
