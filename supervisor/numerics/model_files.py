"""Gets a model from ``MODEL.py:FACTORY``, a callable without arguments in a user's file.

Loads samples and tensors from ``.pt`` files without running code from them.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from supervisor.config_check import did_you_mean
from supervisor.errors import UsageError
from supervisor.numerics.model_call import bare_model, is_float, one_line, tensors_in


def load_model(reference: str) -> nn.Module:
    """Runs the file and calls the factory (a function, a class or a model itself).

    Meanwhile the file's folder is on the import path, as for a script.

    Args:
        reference: ``path/model.py:build``; what follows the last colon is the name.

    Raises:
        UsageError: no such file or name, it raises, or what it returns is no module.
    """
    place, colon, name = reference.rpartition(":")
    if not colon or not name.isidentifier():
        raise UsageError(
            f"{reference}: no MODEL.py:FACTORY: name the function that builds the model after a "
            "colon, as in model.py:build"
        )
    path = Path(place)
    if path.is_dir():
        raise UsageError(f"{place}: is a folder: give the Python file that defines {name}")
    if not path.is_file():
        raise UsageError(f"{place}: no such file: give the Python file that defines {name}")
    with _importable(path.resolve().parent):
        module = _run(path)
        return _build(module, path, name)


def _run(path: Path) -> ModuleType:
    # Under its own name: the user's `model.py` must not hide another module of that name.
    title = f"supervisor_model_{path.stem}"
    spec = importlib.util.spec_from_file_location(title, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path}: not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[title] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the user's file may raise anything
        sys.modules.pop(title, None)
        raise UsageError(
            f"{path}: cannot be imported ({one_line(error)}): training code belongs under "
            "`if __name__ == '__main__':`"
        ) from error
    return module


def _build(module: ModuleType, path: Path, name: str) -> nn.Module:
    factory = getattr(module, name, None)
    if factory is None:
        hint = did_you_mean(name, vars(module)) or "; define it there"
        raise UsageError(f"{path}: no '{name}' in it{hint}")
    if isinstance(factory, nn.Module):
        return bare_model(factory)
    if not callable(factory):
        raise UsageError(
            f"{path}:{name}: {type(factory).__name__} cannot be called: name a function that "
            "returns the model"
        )
    try:
        model = factory()
    except (Exception, SystemExit) as error:  # the user's factory may raise anything
        raise UsageError(
            f"{path}:{name}: raised {one_line(error)}: it must build the model without arguments"
        ) from error
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"{path}:{name}: returned {type(model).__name__}, not a torch.nn.Module: "
            "return the model"
        )
    return bare_model(model)


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        if str(folder) in sys.path:
            sys.path.remove(str(folder))


def load_sample(path: Path) -> Any:
    """Loads one input of a model: a tensor, or a tuple, list or dict of them.

    Raises:
        UsageError: no such file, it cannot be read safely, or there is no tensor in it.
    """
    sample = _load(path)
    shaped = isinstance(sample, (torch.Tensor, list, tuple, Mapping))
    if not shaped or not any(True for _ in tensors_in(sample)):
        raise UsageError(
            f"{path}: holds {type(sample).__name__} without a tensor: save one input with "
            "torch.save(x, path): a tensor, a tuple of arguments or a dict of keywords"
        )
    return sample


def load_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Loads a tensor (named ``tensor``), or all tensors of a list, dict or state dict.

    Raises:
        UsageError: no such file, it cannot be read safely, or it has no floating tensor.
    """
    found = {
        place.lstrip(".") or "tensor": tensor.detach() for place, tensor in tensors_in(_load(path))
    }
    if not any(is_float(tensor) for tensor in found.values()):
        raise UsageError(
            f"{path}: no tensor of floating numbers in it: save one with torch.save(x, path), or a "
            "state_dict"
        )
    return found


def _load(path: Path) -> Any:
    if path.is_dir():
        raise UsageError(f"{path}: is a folder: give a file made with torch.save")
    if not path.is_file():
        raise UsageError(f"{path}: no such file: give a file made with torch.save")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files raise whatever their damage leads to
        if "weights_only" in str(error).lower():
            raise UsageError(
                f"{path}: holds objects other than tensors and plain containers, which could run "
                "code: save tensors, tuples, lists or dicts of them (of a model its state_dict())"
            ) from error
        raise UsageError(
            f"{path}: cannot be read ({one_line(error)}): make it with torch.save"
        ) from error
