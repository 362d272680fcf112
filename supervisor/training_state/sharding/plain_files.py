"""Writes a checkpoint as plain torch loads it."""

from __future__ import annotations

import contextlib
import inspect
import os
import warnings
from pathlib import Path

import torch

from supervisor.errors import CheckpointError, SupervisorError, UsageError
from supervisor.storage.checkpoints.checkpoints import Checkpoint
from supervisor.storage.files.private_files import open_private
from supervisor.training_state.sharding.gathered import gather
from supervisor.training_state.sharding.plain_checkpoint import plain_checkpoint
from supervisor.training_state.sharding.rank_state import read_all_ranks

_DCP_FILE = ".metadata"


def write_torch(checkpoint: Checkpoint, target: Path) -> None:
    """Writes one file for ``torch.load(..., weights_only=True)``.

    Raises:
        CheckpointError: the checkpoint's ranks cannot be joined.
        OSError: the disk refuses; nothing is left.
    """
    content = _content(checkpoint, by_name=False)
    unfinished = target.with_name(f".{target.name}.unfinished")
    try:
        with open_private(unfinished, "wb") as file:
            torch.save(content, file)
        os.replace(unfinished, target)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


def write_dcp(checkpoint: Checkpoint, target: Path) -> None:
    """Writes a folder for ``torch.distributed.checkpoint.load``.

    Raises:
        CheckpointError: the checkpoint's ranks cannot be joined.
        UsageError: `target` is a folder of something else.
        OSError: the disk refuses.
    """
    from torch.distributed.checkpoint.state_dict_saver import save

    if target.is_dir() and any(target.iterdir()) and not (target / _DCP_FILE).is_file():
        raise UsageError(f"{target}: holds other files: give a new folder as --output")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that this is one process
            alone = {"no_dist": True} if "no_dist" in inspect.signature(save).parameters else {}
            save(_content(checkpoint, by_name=True), checkpoint_id=target, **alone)
    except SupervisorError:
        raise
    except Exception as error:  # torch wraps what the disk says
        raise OSError(0, f"{type(error).__name__}: {str(error).splitlines()[0]}") from error


def _content(checkpoint: Checkpoint, *, by_name: bool) -> dict[str, object]:
    try:
        gathered = gather(read_all_ranks(checkpoint))
    except CheckpointError as error:
        raise CheckpointError(f"{checkpoint.path}: cannot be exported: {error}") from error
    return plain_checkpoint(gathered, by_name=by_name)
