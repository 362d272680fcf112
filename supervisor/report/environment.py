"""Command and versions of a run, without secrets."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

_NAME = r"[\w-]*(?:token(?!s)|secret|passw(?:or)?d|api[_-]?key|credential)[\w-]*"
_SECRET = re.compile(
    rf"(?i)((?:--{_NAME}\s+)|(?:{_NAME}\s*[=:]\s*))(\"[^\"]*\"|'[^']*'|[^\s'\",;]{{4,}})"
)
_KNOWN_TOKENS = re.compile(r"\b(?:hf_|sk-|ghp_|gho_|github_pat_|xox[bp]-|AKIA)[\w-]{10,}")
_URL_PASSWORD = re.compile(r"(\w+://[^\s:/@]+:)[^\s@/]+@")
HIDDEN = "***"
_SHOWN = (
    *("script", "function", "arguments", "resume_arguments", "policy", "config", "cwd"),
    *("host", "pid", "started_at", "ended_at", "exit_code", "crash_count"),
)


def hide_secrets(text: str) -> str:
    """Returns `text` with whatever looks like a password, key or token replaced by ``***``."""
    text = _URL_PASSWORD.sub(rf"\1{HIDDEN}@", text)
    text = _KNOWN_TOKENS.sub(HIDDEN, text)
    return _SECRET.sub(rf"\1{HIDDEN}", text)


def command_of(run: Mapping[str, Any]) -> str:
    """Returns the command line that started the run; empty if run.json does not know it."""
    command = run.get("command") or run.get("argv") or ""
    if isinstance(command, (list, tuple)):
        command = shlex.join(str(part) for part in command)
    return hide_secrets(str(command))


def environment_of(run: Mapping[str, Any]) -> dict[str, str]:
    """Returns what run.json says of host, times and versions; never environment variables."""
    found: dict[str, str] = {}
    for name in _SHOWN:
        value = run.get(name)
        if isinstance(value, (list, tuple)):
            value = shlex.join(str(part) for part in value)
        if value not in (None, "", {}) and not isinstance(value, Mapping):
            found[name] = hide_secrets(str(value))
    versions = run.get("versions")
    if isinstance(versions, Mapping):
        for name, version in versions.items():
            if not isinstance(version, (Mapping, list, tuple)) and version not in (None, ""):
                found[str(name)] = hide_secrets(str(version))
    return found
