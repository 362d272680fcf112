"""``pipeline.json``: what detectors, predictor and ladder remember, beside the state it belongs to.

A file of its own and not a part of the manifest, which is read and written again for every decision
about checkpoints: 67 KB of it there held up the training for 50 ms a checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from supervisor.storage.private_files import write_private

MEMORY_FILE = "pipeline.json"


def write_memory(folder: Path, memory: Mapping[str, Any]) -> None:
    """Writes `Pipeline.state_dict` into a checkpoint that is being filled.

    Raises:
        OSError: the disk refuses.
    """
    write_private(folder / MEMORY_FILE, json.dumps(memory))


def read_memory(folder: Path) -> dict[str, Any] | None:
    """Returns what `write_memory` wrote into a verified checkpoint; None if it was left out.

    Raises:
        OSError: the disk refuses.
    """
    path = folder / MEMORY_FILE
    if not path.exists():
        return None
    memory: dict[str, Any] = json.loads(path.read_bytes())
    return memory
