"""What two runs have in common, and the first step at which they differ."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from supervisor.errors import RunDirectoryError
from supervisor.masking import mask_all
from supervisor.records import plain, strict
from supervisor.report.facts.crash_report import CrashReport
from supervisor.report.facts.figures import count, show
from supervisor.report.facts.run_data import RunData
from supervisor.report.render import curve_parts, page_style, template_of
from supervisor.report.tables import Column, Table, in_words, percent, time_taken
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_reader import read_steps
from supervisor.storage.steps.step_rows import STEP_DTYPE
from supervisor.version import __version__

COMPARED = ("batch_signature", "lr", "loss_scale", "loss", "grad_norm")
"""One leads to the next: where several differ at a step, the first of them is named."""
WORDS = {
    "batch_signature": "batch",
    "lr": "learning rate",
    "loss_scale": "loss scale",
    "grad_norm": "gradient norm",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDifference:
    """The first step that differs.

    Attributes:
        value: what differs there first.
        ours, theirs: its figures; of a batch there is no figure, only that it is another one.
    """

    step: int
    value: str
    ours: float | None = None
    theirs: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingDifference:
    """A key of config, policy, command or versions with two values; an empty one is not there."""

    where: str
    key: str
    ours: str
    theirs: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two runs.

    Attributes:
        names: of the runs, different ones.
        reports: of each.
        common_steps: steps that both have.
        equal_steps: of those, how many from the first on are equal to the bit.
        difference: None if all common steps are equal.
        settings: what was asked for differently, without what differs in every run.
    """

    names: tuple[str, str]
    reports: tuple[CrashReport, CrashReport]
    common_steps: int
    equal_steps: int
    difference: StepDifference | None
    settings: tuple[SettingDifference, ...]

    def to_dict(self) -> dict[str, Any]:
        """Returns strict JSON data."""
        found: dict[str, Any] = strict(
            {
                "runs": [
                    {"name": name, "run_dir": report.run_dir, **figures_of(report)}
                    for name, report in zip(self.names, self.reports, strict=True)
                ],
                "common_steps": self.common_steps,
                "equal_steps": self.equal_steps,
                "first_difference": plain(self.difference),
                "settings": plain(self.settings),
            }
        )
        return found


def compare(runs: tuple[RunData, RunData], reports: tuple[CrashReport, CrashReport]) -> Comparison:
    """Compares two runs, of which the reports are made; with secrets masked."""
    ours, theirs = runs
    common, equal, difference = _compare_steps(ours.root, theirs.root)
    return Comparison(
        names=_names(ours.root, theirs.root),
        reports=reports,
        common_steps=common,
        equal_steps=equal,
        difference=difference,
        settings=mask_all(tuple(_settings(ours, theirs))),
    )


def figures_of(report: CrashReport) -> dict[str, Any]:
    """Returns name → figure of what is compared beside the steps."""
    return {
        "end": report.end,
        "root_cause": report.root_cause,
        "last_step": report.last_step,
        "final_loss": report.final_loss,
        "attempts": len(report.attempts),
        "treatments": sum(report.treatments.values()),
        "wall_s": report.cost.wall_s,
        "useful_share": report.cost.useful_share,
    }


def _compare_steps(ours: Path, theirs: Path) -> tuple[int, int, StepDifference | None]:
    """Returns how many steps both have, how many are equal from the first on, and what differs."""
    one, other = (_steps(root) for root in (ours, theirs))
    common, at_one, at_other = np.intersect1d(one["step"], other["step"], return_indices=True)
    one, other = one[at_one], other[at_other]
    firsts = {}
    for name in COMPARED:
        both_nan = (one[name] != one[name]) & (other[name] != other[name])
        places = np.flatnonzero((one[name] != other[name]) & ~both_nan)
        if len(places):
            firsts[name] = int(places[0])
    if not firsts:
        return len(common), len(common), None
    name = min(firsts, key=lambda each: (firsts[each], COMPARED.index(each)))
    place = firsts[name]
    figures = (
        {}
        if name == "batch_signature"
        else {"ours": float(one[name][place]), "theirs": float(other[name][place])}
    )
    difference = StepDifference(step=int(common[place]), value=WORDS.get(name, name), **figures)
    return len(common), place, difference


def _steps(root: Path) -> np.ndarray:
    try:
        return read_steps(RunDirectory(root), fields=("step", *COMPARED))
    except RunDirectoryError:  # named by the report of the run
        return np.empty(0, STEP_DTYPE)


def _settings(ours: RunData, theirs: RunData) -> list[SettingDifference]:
    pairs: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = [
        ("command", _asked(ours.run), _asked(theirs.run)),
        ("versions", _mapping(ours.run, "versions"), _mapping(theirs.run, "versions")),
        ("config", ours.config, theirs.config),
        ("policy", ours.policy, theirs.policy),
    ]
    found = []
    for where, one, other in pairs:
        flat_one, flat_other = _flat(one), _flat(other)
        for key in dict.fromkeys([*flat_one, *flat_other]):
            left, right = flat_one.get(key, ""), flat_other.get(key, "")
            if left != right:
                found.append(SettingDifference(where=where, key=key, ours=left, theirs=right))
    return found


def _asked(run: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked for on the command line, word by word."""
    arguments = run.get("arguments")
    words = [str(word) for word in arguments] if isinstance(arguments, (list, tuple)) else []
    return {"script": run.get("script") or "", "arguments": " ".join(words)}


def _mapping(run: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = run.get(key)
    return value if isinstance(value, Mapping) else {}


def _flat(value: Any, path: str = "") -> dict[str, str]:
    """Returns dotted key → value as text."""
    if isinstance(value, Mapping):
        found: dict[str, str] = {}
        for key, item in value.items():
            found |= _flat(item, f"{path}.{key}" if path else str(key))
        return found
    return {path: "" if value is None else str(value)}


def _names(ours: Path, theirs: Path) -> tuple[str, str]:
    """Returns the shortest ends of the paths that tell the runs apart."""
    one, other = ours.resolve().parts, theirs.resolve().parts
    for length in range(1, max(len(one), len(other)) + 1):
        if one[-length:] != other[-length:]:
            return "/".join(one[-length:]), "/".join(other[-length:])
    return f"{one[-1]} (first)", f"{other[-1]} (second)"


SHOWN_SETTINGS = 200
_LABELS = {
    "end": "end", "root_cause": "root cause", "last_step": "last step", "final_loss": "last loss",
    "attempts": "attempts", "treatments": "treatments", "wall_s": "time", "useful_share": "useful",
}  # fmt: skip
_WRITTEN = {
    "end": in_words, "root_cause": in_words, "final_loss": show, "wall_s": time_taken,
    "useful_share": percent,
}  # fmt: skip


def comparison_html(comparison: Comparison, curves: dict[str, Any] | None) -> str:
    """Returns one page that needs nothing from outside; `curves` as of `render_html`."""
    parts = None if curves is None else curve_parts(curves)
    page = template_of("comparison.html.j2", autoescape=True).render(
        curves=parts, picture_css=page_style(), **_words(comparison)
    )
    return page + "\n"


def comparison_markdown(comparison: Comparison) -> str:
    page = template_of("comparison.md.j2", autoescape=False).render(**_words(comparison))
    return page.strip() + "\n"


def comparison_json(comparison: Comparison) -> str:
    return json.dumps(comparison.to_dict(), indent=2, allow_nan=False) + "\n"


def sentence_of(comparison: Comparison) -> str:
    """Returns how far the runs are the same."""
    difference = comparison.difference
    if not comparison.common_steps:
        return "The runs have no step in common."
    if difference is None:
        return f"All {count(comparison.common_steps, 'common step')} are equal to the bit."
    same = (
        f"{count(comparison.equal_steps, 'step')} equal to the bit; at"
        if comparison.equal_steps
        else "The runs differ from the first step on: at"
    )
    said = f"{same} step {difference.step} the {difference.value} differs"
    if difference.ours is None or difference.theirs is None:
        return f"{said}."
    return f"{said}: {show(difference.ours, 9)} and {show(difference.theirs, 9)}."


def _words(comparison: Comparison) -> dict[str, Any]:
    one, other = (figures_of(report) for report in comparison.reports)
    names = comparison.names
    figures = Table(
        columns=(Column("", ""), *(Column(name, "") for name in names)),
        rows=tuple(
            (label, _written(key, one[key]), _written(key, other[key]))
            for key, label in _LABELS.items()
        ),
    )
    settings = Table(
        columns=(Column("of", ""), Column("key", "name"), *(Column(name, "") for name in names)),
        rows=tuple(
            (each.where, each.key, each.ours or "–", each.theirs or "–")
            for each in comparison.settings
        ),
    )
    return {
        "names": names,
        "sentence": sentence_of(comparison),
        "figures": figures,
        "settings": settings,
        "shown_settings": SHOWN_SETTINGS,
        "verdicts": [report.verdict for report in comparison.reports],
        "problems": [
            f"{name}: {problem}"
            for name, report in zip(names, comparison.reports, strict=True)
            for problem in report.problems
        ],
        "tool_version": __version__,
    }


def _written(key: str, value: Any) -> str:
    if value is None:
        return "–"
    return str(_WRITTEN[key](value)) if key in _WRITTEN else str(value)
