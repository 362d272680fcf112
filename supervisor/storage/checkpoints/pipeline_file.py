"""``pipeline.json``: the state of detectors, predictor and ladder, beside the training's.

It is not part of the manifest because that is read and rewritten often, and this is some 70 KB.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from supervisor.storage.files.private_files import write_private

PIPELINE_FILE = "pipeline.json"


def write_pipeline(folder: Path, state: Mapping[str, Any]) -> None:
    """Writes `Pipeline.state_dict` into a checkpoint that is being filled.

    Raises:
        OSError: the disk refuses.
    """
    write_private(folder / PIPELINE_FILE, json.dumps(state))


def read_pipeline(folder: Path) -> dict[str, Any] | None:
    """Returns what `write_pipeline` wrote into a verified checkpoint; None if it was left out.

    Raises:
        OSError: the disk refuses.
    """
    path = folder / PIPELINE_FILE
    if not path.exists():
        return None
    state: dict[str, Any] = json.loads(path.read_bytes())
    return state
