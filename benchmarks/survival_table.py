"""What the survival benchmark found, as text."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

Row = dict[str, Any]


def table(rows: list[Row], arms: Sequence[str]) -> str:
    """One line a misfortune: survived of all in each arm, and what surviving cost."""
    head = ["MISFORTUNE", "CASES", *(arm.upper() for arm in arms), "LOSS RATIO", "STEPS LOST"]
    lines = [[*head, "SECONDS LOST"]]
    faults = list(dict.fromkeys(row["fault"] for row in rows))
    usual = _usual_seconds(rows)
    for fault in [*faults, "all"]:
        own = [row for row in rows if fault in (row["fault"], "all")]
        ours = [row for row in own if row["arm"] == "default"]
        alive = [row for row in ours if row["survived"]]
        line = ["half precision" if fault == "none" else fault.replace("_", " "), str(len(ours))]
        for arm in arms:
            of_arm = [row for row in own if row["arm"] == arm]
            line.append(f"{sum(row['survived'] for row in of_arm)}/{len(of_arm)}")
        line.append(_median([row["ratio"] for row in alive], ".3f"))
        line.append(_median([row["steps_lost"] for row in alive], ".0f"))
        line.append(_median([row["seconds"] - usual[row["task"]] for row in alive], ".1f"))
        lines.append(line)
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _usual_seconds(rows: list[Row]) -> dict[str, float]:
    """The shortest supervised run of each training, as its time without misfortune."""
    usual: dict[str, float] = {}
    for row in rows:
        if row["arm"] == "default" and row["completed"]:
            usual[row["task"]] = min(row["seconds"], usual.get(row["task"], math.inf))
    return usual


def _median(values: list[float], form: str) -> str:
    return format(statistics.median(values), form) if values else "-"


def tell_healthy(rows: list[Row], steps_each: int) -> str:
    """How much the healthy runs were disturbed."""
    ours = [row for row in rows if row["arm"] == "default"]
    treated = sum(row["interventions"] for row in ours)
    worse = [row for row in ours if not row["completed"] or row["ratio"] > 1.01]
    steps = len(ours) * steps_each
    ratio = _median([row["ratio"] for row in ours], ".4f")
    lines = [
        f"healthy: {len(ours)} runs, {treated} treatments in {steps} steps, "
        f"median loss ratio {ratio}, {len(worse)} runs worse by more than 1 %"
    ]
    lines += [f"  WORSE: {name_of(row)}: {row['ratio']:.3f}, {row['how']}" for row in worse]
    return "\n".join(lines)


def name_of(row: Row) -> str:
    return f"{row['task']} {row['fault']} seed {row['seed']} step {row['at']}"


def tell_kinds(rows: list[Row], known: Mapping[str, str]) -> str:
    """One line a policy; then every run that was treated, or did not end as it does alone.

    Args:
        known: kinds that are still treated, as is known, and why.
    """
    policies = list(dict.fromkeys(row["arm"] for row in rows if row["arm"] != "alone"))
    lines = []
    for policy in policies:
        own = [row for row in rows if row["arm"] == policy]
        same = sum(row["same"] for row in own)
        treatments = sum(len(row["treatments"]) for row in own)
        line = (
            f"healthy kinds, {policy}: {len(own)} runs, {treatments} treatments, "
            f"{same} with the weights of plain python, bit for bit"
        )
        expected = sum(bool(row["treatments"]) and row["kind"] in known for row in own)
        lines.append(f"{line}; {expected} treated, known" if expected else line)
    for row in rows:
        if row["arm"] == "alone" or (row["same"] and not row["treatments"]):
            continue
        verdict = "the same" if row["same"] else "OTHER WEIGHTS"
        done = ", ".join(row["treatments"]) or "no treatment"
        line = f"  {row['kind']} seed {row['seed']}, {row['arm']}: {verdict}; {done}"
        if row["treatments"] and row["kind"] in known:
            line += f"; treated, known: {known[row['kind']]}"
        if row.get("how"):
            line += f"; {row['how']}"
        lines.append(line)
    return "\n".join(lines)
