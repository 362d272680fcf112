"""Policies and configs: composed from YAML files and ``--set``, checked, saved, read again.

Precedence, weakest first: the schema's defaults, the files that a file builds on, the file,
``--set``. Mappings are merged key by key; a list replaces the list below it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from supervisor import config_files
from supervisor.config_check import KeyPath, Problem, find_problem, leaf_keys, schema_at, show
from supervisor.config_files import complete_content, header
from supervisor.errors import ConfigError
from supervisor.settings import PolicySettings, RunSettings
from supervisor.storage.files.private_files import write_private

if TYPE_CHECKING:
    from omegaconf import DictConfig

Settings = TypeVar("Settings", RunSettings, PolicySettings)

POLICY_PREFIX = "policy."


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedFile:
    """A policy or config that comes with the package."""

    name: str
    description: str
    path: Path


def load_config(name_or_path: str = "default", overrides: Sequence[str] = ()) -> RunSettings:
    """Returns a config: what to watch and how to run.

    Args:
        name_or_path: a shipped name (`available_configs`) or a YAML file.
        overrides: ``key=value`` in OmegaConf's dotlist form, applied last, in order.

    Raises:
        ConfigError: names the file (or ``--set``), the key, and the nearest right one.
    """
    return _load(RunSettings, "configs", name_or_path, overrides)


def load_policy(name_or_path: str = "default", overrides: Sequence[str] = ()) -> PolicySettings:
    """Returns a policy: what to do about trouble; as `load_config`.

    The keys of `overrides` come without the prefix ``policy.`` (see `split_overrides`).
    """
    return _load(PolicySettings, "policies", name_or_path, overrides)


def split_overrides(pairs: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the ``--set`` pairs for the config and, without their prefix, for the policy."""
    config = [pair for pair in pairs if not pair.startswith(POLICY_PREFIX)]
    policy = [pair[len(POLICY_PREFIX) :] for pair in pairs if pair.startswith(POLICY_PREFIX)]
    return config, policy


def save_resolved(settings: RunSettings | PolicySettings, path: Path) -> None:
    """Writes every key of `settings` to `path` as YAML that only its owner can read."""
    from omegaconf import OmegaConf

    text = OmegaConf.to_yaml(OmegaConf.structured(settings))
    whole = header(type(settings)) + text
    if not path.is_file() or path.read_text() != whole:  # a full disk still resumes
        write_private(path, whole)


def load_resolved_config(
    path: Path, overrides: Sequence[str] = (), tell: Callable[[str], None] = lambda line: None
) -> RunSettings:
    """Returns the config that a run saved, with `overrides` on top; as `load_config`.

    `tell` gets a line about keys that are newer than the file.
    """
    return _load(RunSettings, "configs", _as_file(path), overrides, alone=tell)


def load_resolved_policy(
    path: Path, overrides: Sequence[str] = (), tell: Callable[[str], None] = lambda line: None
) -> PolicySettings:
    """Returns the policy that a run saved, with `overrides` on top; as `load_policy`.

    `tell` gets a line about keys that are newer than the file.
    """
    return _load(PolicySettings, "policies", _as_file(path), overrides, alone=tell)


def available_policies() -> list[ShippedFile]:
    """Returns the shipped policies, `default` first."""
    return _available(PolicySettings, "policies")


def available_configs() -> list[ShippedFile]:
    """Returns the shipped configs, `default` first."""
    return _available(RunSettings, "configs")


def _load(
    schema: type[Settings],
    kind: str,
    name_or_path: str,
    overrides: Sequence[str],
    *,
    alone: Callable[[str], None] | None = None,
) -> Settings:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    layers = config_files.read_layers(name_or_path, kind, alone=alone is not None)
    if alone is not None:
        defaults = config_files.shipped_folder(kind) / "default.yaml"
        path, content = layers[0].path, layers[0].content
        content = complete_content(path, content, schema, defaults, alone)
        layers = [config_files.Layer(path=path, content=content)]
    merged: Any = OmegaConf.structured(schema)
    for layer in layers:
        content = _with_words(layer.content)
        problem = find_problem(content, schema)
        if problem is not None:
            raise ConfigError(_in_file(layer.path, problem))
        try:
            merged = OmegaConf.merge(merged, content)
        except OmegaConfBaseException as error:
            raise ConfigError(f"{layer.path}: {_first_line(error)}") from error
    # What a file builds on is neither its name nor what it is for.
    last = layers[-1]
    merged.name = str(last.content.get("name", last.path.stem))
    merged.description = str(last.content.get("description", ""))
    settings = _resolve(merged, schema, lambda problem: _in_file(last.path, problem))
    prefix = POLICY_PREFIX if kind == "policies" else ""
    for pair in overrides:
        _override(merged, schema, pair, prefix)
    if overrides:
        settings = _resolve(merged, schema, lambda problem: _in_set(prefix, problem))
    return settings


def _resolve(merged: DictConfig, schema: type[Settings], say: Callable[[Problem], str]) -> Settings:
    """Returns `merged` as its schema, once interpolations are values and keys agree."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        content = OmegaConf.to_container(merged, resolve=True)
        problem = find_problem(content, schema)
        if problem is None:
            settings = cast("Settings", OmegaConf.to_object(merged))
            problem = _disagreement(settings)
            if isinstance(settings, PolicySettings):
                # Who lowers the alarm alone means both: a warning never comes after its alarm.
                settings.warn_threshold = min(settings.warn_threshold, settings.alarm_threshold)
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or "?"
        problem = Problem(path=(str(key),), message=_first_line(error))
    if problem is not None:
        raise ConfigError(say(problem))
    return settings


def _override(merged: DictConfig, schema: type[Settings], pair: str, prefix: str) -> None:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    key, equals, text = pair.partition("=")
    where = f"--set {prefix}{key}"
    if not equals or not key:
        raise ConfigError(f"{where}: expected KEY=VALUE, as in --set checkpoint.every_steps=100")
    path = _key_path(key)
    expected = schema_at(schema, path)
    if isinstance(expected, Problem):
        message = expected.message
        if not prefix and key in leaf_keys(PolicySettings):
            message = f"unknown key; did you mean {POLICY_PREFIX}{key}?"
        raise ConfigError(f"{where}: {message.replace('did you mean ', 'did you mean ' + prefix)}")
    try:
        parsed: Any = OmegaConf.from_dotlist([f"value={text}"])
        value: Any = cast("dict[str, Any]", OmegaConf.to_container(parsed))["value"]
    except Exception as error:  # a YAML error, or one of OmegaConf's grammar
        raise ConfigError(f"{where}: {text!r} is not a YAML value: {_first_line(error)}") from error
    config_files.refuse_environment(value, where)
    if key == "device.late_reads" and isinstance(value, bool):
        value = _WORDS[value]
    problem = find_problem(value, expected, path)
    if problem is not None:
        raise ConfigError(_in_set(prefix, problem))
    for depth, part in enumerate(path):
        items = OmegaConf.select(merged, ".".join(map(str, path[:depth]))) if depth else merged
        if isinstance(part, int) and not part < len(items):
            raise ConfigError(f"{where}: there are {len(items)} of them, counted from 0")
    try:
        OmegaConf.update(merged, ".".join(map(str, path)), value, merge=True)
    except (OmegaConfBaseException, IndexError) as error:
        raise ConfigError(f"{where}: cannot be set: {_first_line(error)}") from error


_WORDS = {True: "on", False: "off"}


def _with_words(content: Mapping[str, Any]) -> dict[str, Any]:
    """YAML reads the words ``on`` and ``off`` as true and false."""
    device = content.get("device")
    given = device.get("late_reads") if isinstance(device, Mapping) else None
    if not isinstance(device, Mapping) or not isinstance(given, bool):
        return dict(content)
    return {**content, "device": {**device, "late_reads": _WORDS[given]}}


def _key_path(key: str) -> KeyPath:
    parts = key.replace("[", ".").replace("]", "").split(".")
    return tuple(int(part) if part.isdigit() else part for part in parts)


def _disagreement(settings: RunSettings | PolicySettings) -> Problem | None:
    if isinstance(settings, RunSettings):
        return None
    highest = 0.0
    for index, rung in enumerate(settings.rungs):
        if rung.at is not None and rung.at < highest:
            message = f"{rung.at:g} is below the rung before; order them by rising risk"
            return Problem(path=("rungs", index, "at"), message=message)
        highest = rung.at or highest
    return None


def _available(schema: type[Settings], kind: str) -> list[ShippedFile]:
    return [
        ShippedFile(name=name, description=_load(schema, kind, name, ()).description, path=path)
        for name, path in config_files.shipped_files(kind).items()
    ]


def _in_file(path: Path, problem: Problem) -> str:
    line = config_files.line_of(path, problem.path)
    place = f"{path}:{line}" if line else f"{path}"
    return f"{place}: {show(problem.path) or 'the whole file'}: {problem.message}"


def _as_file(path: Path) -> str:
    return str(path if path.suffix in config_files.SUFFIXES else path.with_suffix(".yaml"))


def _in_set(prefix: str, problem: Problem) -> str:
    return f"--set {prefix}{show(problem.path)}: {problem.message}"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
