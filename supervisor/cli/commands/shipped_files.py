"""How `supervisor policies` and `supervisor configs` show what is shipped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from supervisor.cli.options.output import print_json
from supervisor.table import print_table

if TYPE_CHECKING:
    from supervisor.config import ShippedFile


def print_shipped(heading: str, files: Sequence[ShippedFile], *, as_json: bool) -> None:
    """Prints names and descriptions, and where the files are."""
    if as_json:
        print_json(files)
        return
    print_table((heading, "WHAT IT IS FOR"), [(file.name, file.description) for file in files])
    if files:
        print(f"\nFiles: {files[0].path.parent}")
