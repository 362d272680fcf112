"""The random numbers with which a run began: an unseeded script resumes like a seeded one.

Without a seed every process starts its generators elsewhere, so a replay would build another model
and shuffle other data. The first attempt notes where they stood; later ones begin there.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

import torch

from supervisor.errors import CheckpointError
from supervisor.storage.files.private_files import write_private
from supervisor.training_state.rng import RngState


def note_first_random(path: Path) -> int:
    """Writes where the global generators stand; called before the script draws from them.

    CUDA's are not there yet: they get a seed of our drawing, as torch itself would draw one.

    Returns:
        That seed, another one in each run.

    Raises:
        OSError: the disk refuses.
    """
    seed = int.from_bytes(os.urandom(6), "little")
    torch.cuda.manual_seed_all(seed)
    buffer = io.BytesIO()
    torch.save({"cuda_seed": seed, "rng": RngState.capture()}, buffer)
    write_private(path, buffer.getvalue(), durable=True)
    return seed


def begin_with_first_random(path: Path) -> int | None:
    """Sets the generators to what the run's first attempt noted; leaves them without a note.

    Returns:
        The seed that it noted; None without a note.

    Raises:
        CheckpointError: the note cannot be read.
    """
    if not path.exists():
        return None
    try:
        noted = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # torch raises many kinds for a damaged file
        raise CheckpointError(f"{path}: cannot be read ({error}): resume approximately") from error
    torch.cuda.manual_seed_all(noted["cuda_seed"])
    RngState.restore(noted["rng"])
    return int(noted["cuda_seed"])
