"""Whether the file that a run saved its policy or config in still holds all that it held."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from supervisor.config_check import leaf_keys
from supervisor.errors import ConfigError
from supervisor.version import __version__

_HEADER = re.compile(r"# written by supervisor (\S+): (\d+) keys\n")
_UNCOUNTED = frozenset(
    {
        "fast_forward.fallbacks",
        "keep_background",
        "limits.alerts_at_once",
        "limits.every_steps",
        "limits.log_mib",
        "limits.stdin_mib",
        "limits.treatments_at_once",
        "observed_max_gib",
        "watchdog.idle_timeout_s",
    }
)
"""Keys that were added before files said how many they hold; the first version had none of them,
and no default of theirs treats anything."""

_GONE = ("huge_pages",)
"""Keys of the top level that earlier versions wrote; none of them changed what a run computes."""


def header(schema: type) -> str:
    """Returns the first line of such a file: a later version knows by it which keys are new."""
    return f"# written by supervisor {__version__}: {len(leaf_keys(schema))} keys\n"


def complete_content(
    path: Path,
    content: Mapping[str, Any],
    schema: type,
    defaults: Path,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Returns what a saved file says, without the keys that this version knows no more.

    A key that was lost must not become a default unnoticed; one that was never there may.

    Args:
        path, content: of the file.
        schema: with every key that this version knows.
        defaults: the shipped file that shows them.
        tell: called with one line about keys that are newer or older than this version.

    Raises:
        ConfigError: the file holds fewer keys than were written to it.
    """
    gone = [key for key in _GONE if key in content]
    known = {key: value for key, value in content.items() if key not in gone}
    if gone:
        tell(f"{path}: {', '.join(gone)}: this version has no such setting: left out")
    keys = leaf_keys(schema)
    missing = [key for key in keys if not _has(content, key)]
    if not missing:
        return known
    named = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    version, written = _written_by(path)
    is_older = bool(written) and written == len(keys) - len(missing) + len(gone)
    if is_older or (not version and _UNCOUNTED.issuperset(missing)):
        of = f"version {version}" if version else "an older version"
        tell(f"{path}: of {of}, which did not know {named}: their defaults are used")
        return known
    raise ConfigError(
        f"{path}: {named}: missing: this file says what the run uses, so no key may be left out: "
        f"restore it, or write the missing keys into it (their defaults: {defaults} and "
        "docs/configuration.md)"
    )


def _written_by(path: Path) -> tuple[str, int]:
    """Returns the version that wrote a file and how many keys it wrote; ("", 0) if unknown."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found = _HEADER.fullmatch(file.readline(200))
    except OSError:
        found = None
    return (found[1], int(found[2])) if found else ("", 0)


def _has(content: Mapping[str, Any], key: str) -> bool:
    value: Any = content
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return False
        value = value[part]
    return True
