"""Finds, reads and composes the YAML files of policies and configs.

A file may begin with ``defaults: [default, mine.yaml]``: what it builds on, merged in this order,
itself last. Without that line it builds on ``default``; with ``defaults: []`` on the schema alone.
A name is a shipped file; whatever ends in ``.yaml`` or names a folder is a path, relative to the
file that mentions it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.config_check import KeyPath, did_you_mean
from supervisor.errors import ConfigError

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
