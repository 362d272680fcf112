"""Addresses and passwords that a config only points to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from supervisor.errors import ConfigError

IN_ENVIRONMENT, IN_FILE = "env:", "file:"


def points_to_secret(text: str) -> bool:
    """Whether a setting says where a secret is, instead of being one."""
    return text.startswith((IN_ENVIRONMENT, IN_FILE))


def read_secret(where: str, text: str, environment: Mapping[str, str] = os.environ) -> str:
    """Returns what ``env:NAME`` or ``file:PATH`` points to; any other text as it is.

    Args:
        where: the setting, for the error.

    Raises:
        ConfigError: there is nothing.
    """
    if text.startswith(IN_ENVIRONMENT):
        name = text.removeprefix(IN_ENVIRONMENT)
        found = environment.get(name, "").strip()
        if not found:
            raise ConfigError(f"{where}: {text}: {name} is not set: export it, or leave this out")
        return found
    if text.startswith(IN_FILE):
        path = Path(text.removeprefix(IN_FILE)).expanduser()
        try:
            found = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "not a text"
            raise ConfigError(f"{where}: {path}: {why}: give a file with one line") from error
        if not found:
            raise ConfigError(f"{where}: {path}: is empty: give a file with one line")
        return found
    return text
