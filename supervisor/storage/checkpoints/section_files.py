"""Named JSON files of a checkpoint beside the training's state: ``pipeline.json`` and others.

They are not part of the manifest because that is read and rewritten often, and the pipeline's
windows alone are some 70 KB.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from supervisor.storage.files.private_files import write_private

PIPELINE = "pipeline"
"""The state of detectors, predictor and ladder."""


def section_file(name: str) -> str:
    """Returns the name of a section's file within a checkpoint's folder."""
    return f"{name}.json"


def write_section(folder: Path, name: str, content: Mapping[str, Any]) -> None:
    """Writes a section into a checkpoint that is being filled.

    Raises:
        OSError: the disk refuses.
    """
    write_private(folder / section_file(name), json.dumps(content))


def read_section(folder: Path, name: str) -> dict[str, Any] | None:
    """Returns what `write_section` wrote into a verified checkpoint; None if it was left out.

    Raises:
        OSError: the disk refuses.
    """
    path = folder / section_file(name)
    if not path.exists():
        return None
    content: dict[str, Any] = json.loads(path.read_bytes())
    return content
