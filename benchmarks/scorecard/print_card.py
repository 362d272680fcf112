"""Prints the scorecard as Markdown tables."""

from __future__ import annotations

from typing import Any


def print_card(split: str, figures: dict[str, Any]) -> None:
    labels = ", ".join(f"{count} {label}" for label, count in figures["labels"].items())
    ours = next(iter(figures["judges"].values()))
    print(f"\n## {split}: {figures['runs']} runs ({labels}), {ours['healthy_steps']} healthy steps")
    _print_judges(figures["judges"])
    print(
        f"\nof {ours['crashes_over_100_steps']} crashes that take 100 steps or more "
        f"{ours['of_these_found_100_ahead']} are found 100 steps before their peak"
    )
    warned = figures["warnings"]
    print(
        f"\nwarnings: {warned['false_per_10k']} false per 10,000, before "
        f"{warned['found_before_peak']} of {warned['crashes']} crashes, lead {_median(warned)}"
    )
    _print_decisions(figures)
    _print_calibration(figures)
    for key, rows in figures["by"].items():
        heads = "crashes found before the peak | at most 5 later | false alarms | decisions"
        print(f"\n| {key} | {heads} |")
        print("| --- | --- | --- | --- | --- |")
        for name, (found, late, crashes, false, decided) in rows.items():
            if crashes or false or decided:
                print(f"| {name} | {found} of {crashes} | {late} | {false} | {decided} |")


def _print_judges(judges: dict[str, Any]) -> None:
    print(
        "\n| judge | false per 10k | undisturbed runs | found | +5 steps | "
        "of those that build up | lead | lead if > 20 steps | left | partial area | ours ahead |"
    )
    print("| --- " * 11 + "|")
    for name, row in judges.items():
        left = "-" if row["median_share_left"] is None else f"{row['median_share_left']:.0%}"
        low, high = row["interval"]
        behind = row["ahead_interval"]
        print(
            f"| {name} | {row['false_per_10k']} | {row['undisturbed_per_10k']} | "
            f"{row['found_before_peak']}/{row['crashes']} | "
            f"{row['found_at_most_5_later']} | {row['found_of_these']}/"
            f"{row['crashes_that_build_up']} | {_median(row)} | {row['median_lead_of_these']} | "
            f"{left} | {row['partial_area']} ({low}-{high}) | "
            f"{row['ours_ahead_by']} ({behind[0]}-{behind[1]}) |"
        )


def _print_decisions(figures: dict[str, Any]) -> None:
    every, intended = figures["decisions"], figures["decisions_with_intended_changes"]
    print(
        f"\ndecisions at healthy steps: {every['decisions']} in {every['in_runs']} of "
        f"{every['runs']} runs; with data changed on purpose {intended['decisions']} in "
        f"{intended['in_runs']} of {intended['runs']}; at crashes, until 5 steps after the peak: "
        f"{every['met']} of {every['crashes']}"
    )


def _print_calibration(figures: dict[str, Any]) -> None:
    for name in ("calibrated", "raw_risk"):
        row = figures[name]
        print(
            f"\n{name}: Brier {row['brier']} (base rate {row['brier_of_base_rate']}), "
            f"largest gap {row['largest_gap']} in bins of 100 steps or more"
        )
        print("  said → true (steps): " + ", ".join(f"{s} → {t} ({n})" for n, s, t in row["bins"]))


def _median(row: dict[str, Any]) -> str:
    quartiles = row["lead_quartiles"]
    return "-" if quartiles is None else f"{quartiles[1]:g} ({quartiles[0]:g}-{quartiles[2]:g})"
