"""A state on disk: one file that plain torch reads.

    state = torch.load("state.pt", weights_only=True, map_location="cpu")
    model.load_state_dict(state["models"]["model_0"], strict=False)

(``strict=False`` because non-persistent buffers are in it too.)
"""

from __future__ import annotations

import pickle
import zipfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from supervisor.errors import CheckpointDamaged, CheckpointError
from supervisor.storage.files.private_files import open_private
from supervisor.training_state.state import FORMAT
from supervisor.training_state.tensors import local, outside_autograd, storage_of, walk_tensors

STATE_FILE = "state.pt"


def write_state(folder: Path, state: Mapping[str, Any]) -> Path:
    """Writes ``state.pt`` into `folder` (private, not yet flushed to disk); returns its path.

    Tensor by tensor: none of another device, and no copy of the whole, lies in memory meanwhile.
    The owner of `folder` takes care of checksums, staging and flushing.

    Raises:
        CheckpointError: `state` holds something that is neither a tensor nor plain.
        OSError: the disk is full, or `folder` is missing.
    """
    path = folder / STATE_FILE
    with outside_autograd():
        viewed: Counter[int] = Counter()
        for tensor in {id(t): t for _, t in walk_tensors(dict(state))}.values():
            viewed[storage_of(tensor) or 0] += tensor.numel() * tensor.element_size()
        compact = _compact(dict(state), "state", {}, viewed)
        with open_private(path, "wb") as file:
            torch.save(compact, file)
    return path


def read_state(folder: Path) -> dict[str, Any]:
    """Returns the state in `folder` on the CPU; nothing in the file is executed.

    Its tensors are pages of the file, which the system reads when they are used and gives up when
    memory is short; what is written into them stays in this process.

    Raises:
        CheckpointError: there is no state, or a newer version of this package wrote it.
        CheckpointDamaged: the file is not what `write_state` writes.
    """
    path = folder / STATE_FILE
    try:
        state = torch.load(path, weights_only=True, map_location="cpu", mmap=True)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: no such file: use another checkpoint of the run") from error
    except (
        pickle.UnpicklingError,
        zipfile.BadZipFile,
        RuntimeError,
        EOFError,
        ValueError,
        KeyError,
    ) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointDamaged(f"{path}: not readable ({first}): use an older one") from error
    if not isinstance(state, dict) or "format" not in state:
        raise CheckpointDamaged(f"{path}: not a state of this package: use an older one")
    if state["format"] > FORMAT:
        raise CheckpointError(
            f"{path}: format {state['format']}, this version reads up to {FORMAT}: "
            "update training-supervisor"
        )
    return state


def _compact(
    value: Any, where: str, done: dict[int, tuple[Any, torch.Tensor]], viewed: Mapping[int, int]
) -> Any:
    """Copies tensors that are small views of large storages, unless others view the rest of it.

    Args:
        viewed: address of a storage → bytes that the state's tensors have of it.
    """
    if isinstance(value, torch.Tensor):
        if id(value) not in done:
            own = local(value)
            storage = own.untyped_storage()
            done[id(value)] = (
                value,
                own if storage.nbytes() <= viewed.get(storage.data_ptr(), 0) else own.cpu().clone(),
            )
        return done[id(value)][1]
    if isinstance(value, dict):
        return {
            key: _compact(item, f"{where}[{key!r}]", done, viewed) for key, item in value.items()
        }
    if type(value) in (list, tuple):
        return type(value)(_compact(item, f"{where}[..]", done, viewed) for item in value)
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise CheckpointError(
        f"{where}: {type(value).__name__} is neither a tensor nor plain: "
        "put it through supervisor.training_state.plain_form.to_plain first"
    )
