"""Finds, reads and composes the YAML files of policies and configs.

A file may begin with ``defaults: [default, mine.yaml]``: what it builds on, merged in this order,
itself last. Without that line it builds on ``default``; with ``defaults: []`` on the schema alone.
A name is a shipped file; whatever ends in ``.yaml`` or names a folder is a path, relative to the
file that mentions it.

Whether the file that a run saved its policy or config in still holds all that it held.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.config_check import KeyPath, did_you_mean, leaf_keys
from supervisor.errors import ConfigError
from supervisor.version import __version__

SUFFIXES = (".yaml", ".yml")
_ENVIRONMENT = re.compile(r"\$\{\s*(oc\.)?env\s*:")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What one file says, without its ``defaults``."""

    path: Path
    content: Mapping[str, Any]


def shipped_folder(kind: str) -> Path:
    """Returns the folder of the shipped ``policies`` or ``configs``: wheel first, then checkout."""
    package = Path(__file__).resolve().parent
    installed = package / "_shipped" / kind
    return installed if installed.is_dir() else package.parent / kind


def shipped_files(kind: str) -> dict[str, Path]:
    """Returns name → file of what is shipped, `default` first, then by name."""
    files = sorted(shipped_folder(kind).glob("*.yaml"))
    return {path.stem: path for path in sorted(files, key=lambda path: path.stem != "default")}


def read_layers(name_or_path: str, kind: str, *, alone: bool = False) -> list[Layer]:
    """Returns the layers of a policy or config, to be merged in order.

    Args:
        name_or_path: a shipped name or a path, relative to the working directory.
        kind: ``policies`` or ``configs``.
        alone: the file holds every key and builds on nothing.

    Raises:
        ConfigError: a file is missing, is not YAML, or builds on itself.
    """
    path = _find(name_or_path, kind, base=Path(), asked_by="")
    return [Layer(path=path, content=_read(path))] if alone else _layers(path, kind, chain=())


def line_of(path: Path, key: KeyPath) -> int | None:
    """Returns the line, from 1, in which `key` stands; None when it does not stand there."""
    import yaml

    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (OSError, ValueError, yaml.YAMLError):
        return None
    line = None
    for part in key:
        if isinstance(node, yaml.MappingNode):
            found = [pair for pair in node.value if pair[0].value == str(part)]
            if not found:
                return line
            mark, node = found[-1][0].start_mark, found[-1][1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            node = node.value[part]
            mark = node.start_mark
        else:
            return line
        line = int(mark.line) + 1
    return line


def _layers(path: Path, kind: str, chain: tuple[Path, ...]) -> list[Layer]:
    if path in chain:
        circle = " -> ".join(file.name for file in (*chain[chain.index(path) :], path))
        raise ConfigError(f"{path}: defaults: goes in a circle: {circle}; remove one of them")
    content = dict(_read(path))
    if not content:
        raise ConfigError(f"{path}: is empty: write at least `defaults: [default]`, or give a name")
    implied = [] if chain or path == shipped_files(kind).get("default") else ["default"]
    parents = content.pop("defaults", implied) or []
    if isinstance(parents, str):
        parents = [parents]
    if not isinstance(parents, list) or not all(isinstance(name, str) for name in parents):
        raise ConfigError(f"{path}: defaults: expected a list of names or files, got {parents!r}")
    layers = []
    for name in parents:
        found = _find(name, kind, base=path.parent, asked_by=f"{path}: defaults: ")
        layers += _layers(found, kind, (*chain, path))
    return [*layers, Layer(path=path, content=content)]


def _find(name: str, kind: str, base: Path, asked_by: str) -> Path:
    if not name.endswith(SUFFIXES) and "/" not in name:
        known = shipped_files(kind)
        if name in known:
            return known[name]
        word = {"policies": "policy", "configs": "config"}[kind]
        hint = did_you_mean(name, known) or f"; known: {', '.join(known)}"
        raise ConfigError(f"{asked_by}no {word} is called {name!r}{hint} (or give a .yaml file)")
    path = base / name
    if not path.is_file():
        raise ConfigError(f"{asked_by}{path}: no such file; give a name or an existing .yaml file")
    return path


def _read(path: Path) -> Mapping[str, Any]:
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        content = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{path}{line}: not YAML: {problem}") from error
    except (OSError, UnicodeDecodeError, OmegaConfBaseException) as error:
        raise ConfigError(f"{path}: cannot be read as YAML: {error}") from error
    if not isinstance(content, Mapping):
        raise ConfigError(f"{path}: expected `key: value` lines, got a {type(content).__name__}")
    refuse_environment(content, str(path))
    return {str(key): value for key, value in content.items()}


def refuse_environment(value: Any, where: str) -> None:
    """A value of the environment may be a secret, and would be written to the run directory.

    Raises:
        ConfigError: `value` reads one.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            refuse_environment(item, f"{where}: {key}")
    elif isinstance(value, (list, tuple)):
        for item in value:
            refuse_environment(item, where)
    elif isinstance(value, str) and _ENVIRONMENT.search(value):
        raise ConfigError(
            f"{where}: {value}: the environment is not read, because every value is written to "
            "the run directory: write the value itself"
        )


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

_GONE = ("huge_pages", "guard.reinstate")
"""Keys that earlier versions wrote."""


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
    gone = [key for key in _GONE if _has(content, key)]
    known = _without(content, gone)
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


def _without(content: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    found = {}
    for name, value in content.items():
        inner = [key.removeprefix(f"{name}.") for key in keys if key.startswith(f"{name}.")]
        if name not in keys:
            found[name] = _without(value, inner) if inner else value
    return found


def _has(content: Mapping[str, Any], key: str) -> bool:
    value: Any = content
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return False
        value = value[part]
    return True
