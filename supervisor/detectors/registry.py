"""Builds the detectors of a config's section ``detectors``; imports what it names by a path."""

from __future__ import annotations

import difflib
import importlib
import inspect
import math
import os
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from supervisor.detectors.base import Detector
from supervisor.detectors.observed_lines import GROWTHS, LINES, detector_of_growth, detector_of_line
from supervisor.errors import ConfigError
from supervisor.records import Alert


def load_dotted(path: str) -> Any:
    """Imports ``module.attribute``, also from the current folder, where configs are written.

    Raises:
        ImportError, AttributeError, ValueError: there is no such module or attribute.
    """
    module, _, attribute = path.rpartition(".")
    folder = os.getcwd()
    if folder not in sys.path and "" not in sys.path:
        sys.path.append(folder)  # last: nothing there may hide an installed module
    return getattr(importlib.import_module(module), attribute)


_WORDS: dict[type, tuple[str, tuple[type, ...]]] = {
    bool: ("true or false", (bool,)),
    int: ("a whole number", (int,)),
    float: ("a number", (int, float)),
}


def check_values(name: str, kind: type, settings: Mapping[str, Any]) -> None:
    """Compares each value with the type of the constructor's parameter.

    A number whose default is not negative must not be negative.

    Raises:
        ConfigError: another type, not a number, infinite or negative; names the setting.
    """
    hints = typing.get_type_hints(kind.__init__)  # type: ignore[misc]  # of a class, not an instance
    parameters = inspect.signature(kind).parameters
    for key, value in settings.items():
        hint = hints.get(key)
        if typing.get_origin(hint) is types.UnionType:
            if value is None and type(None) in typing.get_args(hint):
                continue
            hint = next(one for one in typing.get_args(hint) if one is not type(None))
        if not isinstance(hint, type) or hint not in _WORDS:
            continue
        problem = _problem(value, hint, parameters[key].default)
        if problem:
            raise ConfigError(f"detectors.{name}.{key}: expected {problem}, got {value!r}")


def _problem(value: Any, hint: Any, default: Any) -> str:
    words, accepted = _WORDS[hint]
    number: Any = value
    if not isinstance(value, accepted) or (isinstance(value, bool) and hint is not bool):
        return words
    if hint is bool:
        return ""
    if not math.isfinite(number):
        return f"{words} that is finite"
    if number < 0 and isinstance(default, (int, float)) and default >= 0:
        return f"{words} at least 0"
    return ""


_ROOM = "supervisor.detectors."
_TABLE = "observed_lines"

BUILTIN: dict[str, str] = {
    "nonfinite": "precision.NonfiniteDetector",
    "loss_anomaly": "base.signal_anomaly.LossAnomalyDetector",
    "gradient_anomaly": "base.signal_anomaly.GradientAnomalyDetector",
    "slow_divergence": "loss.SlowDivergenceDetector",
    "loss_scale": "precision.LossScaleDetector",
    "gradient_health": "gradients.GradientHealthDetector",
    "learning_rate": "schedule.LearningRateDetector",
    "hot_start": "schedule.HotStartDetector",
    "batch_impact": "schedule.BatchImpactDetector",
    "constant_loss": "loss.ConstantLossDetector",
    "convergence": "loss.ConvergenceDetector",
    "posterior_collapse": "objective.PosteriorCollapseDetector",
    "layer_gradient": "gradients.LayerGradientDetector",
    "dead_layers": _TABLE,
    "update_ratio": "gradients.UpdateRatioDetector",
    "activation_range": _TABLE,
    "activation_growth": _TABLE,
    "dead_units": _TABLE,
    "representation_collapse": _TABLE,
    "attention_logits": _TABLE,
    "attention_entropy": _TABLE,
    "reward_drift": "rewards.RewardDriftDetector",
    "reward_hacking": "rewards.RewardHackingDetector",
    "reward_calibration": "rewards.RewardCalibrationDetector",
    "policy_step": _TABLE,
    "no_advantage": _TABLE,
    "advantage_scale": _TABLE,
    "value_loss": _TABLE,
    "entropy_collapse": _TABLE,
    "loader_wait": _TABLE,
    "other_data": "objective.OtherDataDetector",
    "resources": "resources.ResourcesDetector",
}
"""Detectors that run unless a config says ``name: null``, and where each is in this room (a class
or a row of a table)."""

GONE = ("adam_rms", "page_hinkley")
"""Detectors of earlier versions: what a config says of them is left out."""


def build_detectors(settings: Mapping[str, Any]) -> list[Detector]:
    """Builds every built-in detector and those that `settings` adds.

    Args:
        settings: detector name → mapping of its settings, or None to switch it off. A key
            ``class: dotted.path.Class`` makes the entry a detector of the user's own.

    Raises:
        ConfigError: an unknown name, an unknown setting, a class that cannot be imported, or a
            value that the detector refuses; the nearest valid one is named.
    """
    wanted: dict[str, dict[str, Any] | None] = {name: {} for name in BUILTIN}
    for name, value in settings.items():
        if name in GONE:
            continue
        if value is None or value is False:
            _check_known(name)
            wanted[name] = None
            continue
        if value is True:
            value = {}
        if not isinstance(value, Mapping):
            raise ConfigError(
                f"detectors.{name}: {value!r}: give its settings as `key: value`, or null"
            )
        if "class" not in value:
            _check_known(name)
        wanted[name] = dict(value)
    return [_build(name, value) for name, value in wanted.items() if value is not None]


def _check_known(name: str) -> None:
    if name not in BUILTIN:
        raise ConfigError(
            f"detectors.{name}: unknown detector{_nearest(name, BUILTIN)}; "
            "one of your own needs `class: module.Class`"
        )


def _build(name: str, settings: dict[str, Any]) -> Detector:
    own = settings.pop("class", None)
    kind = _built_in(name) if own is None else _named(f"detectors.{name}.class", str(own))
    if not isinstance(kind, type) or not issubclass(kind, Detector):
        raise ConfigError(
            f"detectors.{name}.class: {own}: not a Detector: derive it from supervisor.Detector"
        )
    parameters = inspect.signature(kind).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        for key in settings:
            if key not in parameters:
                raise ConfigError(
                    f"detectors.{name}.{key}: unknown setting{_nearest(key, parameters)}"
                )
    if own is None:
        check_values(name, kind, settings)
    try:
        detector = kind(**settings)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"detectors.{name}: {error}: correct its settings") from error
    if own is not None:
        detector.name = name  # the key in the config names this instance
    return detector


def _built_in(name: str) -> type[Detector]:
    if name in LINES:
        return detector_of_line(name, LINES[name])
    if name in GROWTHS:
        return detector_of_growth(name, GROWTHS[name])
    return load_dotted(_ROOM + BUILTIN[name])  # type: ignore[no-any-return]


def _named(where: str, path: str) -> Any:
    """Returns the class that a config names; older ones name a built-in class by a module of its
    own."""
    module = path.split(".")[-2:-1]
    is_former = path.startswith(_ROOM) and module and module[0] in BUILTIN
    return _built_in(module[0]) if is_former else _load(where, path)


def _load(where: str, path: str) -> Any:
    try:
        return load_dotted(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{where}: {path}: {error}: give an importable dotted path") from error


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(sorted(known))}"


def load_alert_handlers(paths: Sequence[str]) -> list[Callable[[Alert], Any]]:
    """Imports what ``module.function`` names; each is called with every `Alert` of the worker.

    Raises:
        ConfigError: a path that cannot be imported, or is not callable.
    """
    found = []
    for index, path in enumerate(paths):
        where = f"alert_handlers[{index}]"
        handler = _load(where, path)
        if not callable(handler):
            raise ConfigError(f"{where}: {path}: not a function: name one that takes an Alert")
        found.append(handler)
    return found
