"""Command and versions of a run, without secrets."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from supervisor.masking import mask_command, mask_secrets

_SHOWN = (
    *("script", "function", "arguments", "resume_arguments", "policy", "config", "cwd"),
    *("host", "pid", "started_at", "ended_at", "exit_code", "crash_count"),
)


def command_of(run: Mapping[str, Any]) -> str:
    """Returns the command line that started the run; empty if run.json does not know it."""
    command = run.get("command") or run.get("argv") or ""
    if isinstance(command, (list, tuple)):
        command = shlex.join(mask_command([str(part) for part in command]))
    return mask_secrets(str(command))


def environment_of(run: Mapping[str, Any]) -> dict[str, str]:
    """Returns what run.json says of host, times and versions; never environment variables."""
    found: dict[str, str] = {}
    for name in _SHOWN:
        value = run.get(name)
        if isinstance(value, (list, tuple)):
            value = shlex.join(mask_command([str(part) for part in value]))
        if value not in (None, "", {}) and not isinstance(value, Mapping):
            found[name] = mask_secrets(str(value))
    versions = run.get("versions")
    if isinstance(versions, Mapping):
        for name, version in versions.items():
            if not isinstance(version, (Mapping, list, tuple)) and version not in (None, ""):
                found[str(name)] = mask_secrets(str(version))
    return found
