"""Imports the functions that a config lists as ``alert_handlers``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from supervisor.detectors.dotted_path import load_dotted
from supervisor.errors import ConfigError
from supervisor.records import Alert


def load_alert_handlers(paths: Sequence[str]) -> list[Callable[[Alert], Any]]:
    """Imports what ``module.function`` names; each is called with every `Alert` of the worker.

    Raises:
        ConfigError: a path that cannot be imported, or is not callable.
    """
    return [_load(index, path) for index, path in enumerate(paths)]


def _load(index: int, path: str) -> Callable[[Alert], Any]:
    where = f"alert_handlers[{index}]: {path}"
    try:
        found = load_dotted(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}: give an importable dotted path") from error
    if not callable(found):
        raise ConfigError(f"{where}: not a function: name one that takes an Alert")
    return found  # type: ignore[no-any-return]
