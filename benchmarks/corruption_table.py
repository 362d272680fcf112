"""What the benchmark of flipped bits found, as text."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import Any

Row = dict[str, Any]
RULES = ("clip", "spike rule")
ARMS = ("alone", *RULES, "supervised")
CLOSE = 1.01

_WORDS = {
    "weight": "weight",
    "first": "first moment",
    "second": "second moment",
    "mean": "running mean",
    "variance": "running variance",
    "average": "average of the weights",
    "gradient": "gradient in flight",
}


def tell_results(rows: list[Row]) -> str:
    """Returns a Markdown table, a line for each kind of memory."""
    lines = [
        "| flipped bit in | flips | alone: hurt | clipped: hurt | spike rule: hurt "
        "| **supervised: hurt** | proved | put back in place | rollback | "
        "other treatment | would have hurt, ends within 1 % | steps lost, median |",
        "| --- |" + " ---: |" * 11,
    ]
    by_case = _by_case(rows)
    for target in [*_WORDS, ""]:
        own = [arms for arms in by_case if target in (_target(arms), "")]
        if own:
            lines.append(_line(_WORDS.get(target, "**all**"), own))
    return "\n".join(lines)


def _by_case(rows: list[Row]) -> list[dict[str, Row]]:
    """Cases by arm; only those that were run in all arms there are."""
    cases: dict[str, dict[str, Row]] = {}
    for row in rows:
        place = repr([row[key] for key in ("model", "optimizer", "dtype", "seed", "flip")])
        cases.setdefault(place, {})[row["arm"]] = row
    most = max(map(len, cases.values()), default=0)
    return [arms for arms in cases.values() if len(arms) == most]


def _target(arms: dict[str, Row]) -> str:
    return str(next(iter(arms.values()))["flip"]["target"])


def _line(name: str, cases: list[dict[str, Row]]) -> str:
    hurt = [_count_hurt(cases, arm) for arm in ARMS]
    ours = [arms["supervised"] for arms in cases if "supervised" in arms]
    proved = [row for row in ours if _proved(row)]
    healed = Counter(_how_healed(row) for row in proved)
    other = [row for row in ours if not _proved(row) and row["treated"]]
    risky = [arms["supervised"] for arms in cases if _is_risky(arms)]
    close = sum(row["ratio"] <= CLOSE for row in risky)
    lost = [row["steps_lost"] for row in risky if row["steps_lost"] is not None]
    cells = [
        name, len(cases), *hurt[:3], f"**{hurt[3]}**", len(proved), healed["in_place"],
        healed["rollback"], len(other), f"{close} of {len(risky)}",
        f"{statistics.median(lost):g}" if lost else "-",
    ]  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


def _is_risky(arms: dict[str, Row]) -> bool:
    return "supervised" in arms and "alone" in arms and bool(arms["alone"]["hurt"])


def _count_hurt(cases: list[dict[str, Row]], arm: str) -> int | str:
    own = [arms[arm] for arms in cases if arm in arms]
    return sum(row["hurt"] for row in own) if own else "-"


def _proved(row: Row) -> list[Row]:
    """What was found after the bit had flipped."""
    return [found for found in row["found"] if found["step"] > row["flip"]["step"]]


def _how_healed(row: Row) -> str:
    ways = [found["healed"] for found in _proved(row)]
    return "rollback" if "rollback" in ways else ways[0]


def tell_missed(rows: list[Row]) -> str:
    """Returns a line for each flip that hurts under supervision, and for each that was called
    corrupted too early."""
    lines = []
    for arms in _by_case(rows):
        ours = arms.get("supervised")
        if ours is None:
            continue
        early = [found for found in ours["found"] if found["step"] <= ours["flip"]["step"]]
        if early:
            lines.append(f"FALSE: {_name(ours)}: {early[0]}")
        if ours["hurt"] or (_is_risky(arms) and ours["ratio"] > CLOSE):
            word = "HURT" if ours["hurt"] else "beyond 1 %"
            alone = arms["alone"]["ratio"] if "alone" in arms else float("nan")
            rules = [f"{f['tensor']} {f['rule']} {f['healed']}" for f in ours["found"]]
            lines.append(
                f"{word}: {_name(ours)}: {ours['ratio']:.3f} of undisturbed, alone {alone:.3f}; "
                f"{ours['how']}; {'; '.join(rules) or 'not proved'}"
            )
    return "\n".join(lines)


def _name(row: Row) -> str:
    flip, struck = row["flip"], row["struck"] or {}
    return (
        f"{flip['target']} bit {flip['bit']} {row['dtype']} {row['model']} {row['optimizer']} seed "
        f"{row['seed']} step {flip['step']} ({struck.get('before')} -> {struck.get('after')})"
    )


def tell_healthy(rows: list[Row], steps_each: int) -> str:
    """Returns what happened where nothing was wrong."""
    found = [f for row in rows for f in row["found"]]
    treated = Counter(name for row in rows for name in row["treated"])
    lines = [
        f"healthy: {len(rows)} trainings, {len(rows) * steps_each} steps: {len(found)} false "
        f"alarms, {sum(treated.values())} treatments {dict(treated) or ''}"
    ]
    lines += [f"FALSE: {one}" for one in found]
    lines += ["FAILED" for row in rows if row["code"] != 0]
    return "\n".join(lines)
