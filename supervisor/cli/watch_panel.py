"""Draws a frame of `supervisor watch` with rich."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from supervisor.cli.watch_view import WatchView

MAX_OBSERVED = 30
"""Values that a usual window has room for."""
BARS = "▁▂▃▄▅▆▇█"
NONFINITE = "×"
WIDTH = 60


def build_panel(view: WatchView) -> RenderableType:
    """Returns the frame; nothing in it is read as markup, whatever a script calls its values."""
    parts: list[RenderableType] = [_figures(view)]
    if view.losses:
        parts.append(_curves(view))
    if view.events:
        parts.append(_events(view))
    state = Text(f"{view.state}, attempt {view.attempt}" if view.attempt else view.state)
    return Panel(Group(*parts), title=Text(view.title), title_align="left", subtitle=state)


def sparkline(
    values: Sequence[float], width: int = WIDTH, *, span: tuple[float, float] | None = None
) -> str:
    """Returns values as one line of bars; several values a bar show their largest.

    `span` is what the lowest and the highest bar stand for; by default what the values span. A bar
    with a NaN or an infinity in it is a cross.
    """
    if not values:
        return ""
    share = max(1, math.ceil(len(values) / width))
    groups = [values[i : i + share] for i in range(0, len(values), share)]
    finite = [value for value in values if math.isfinite(value)]
    low, high = span or ((min(finite), max(finite)) if finite else (0.0, 0.0))
    height = (high - low) or 1.0
    marks = []
    for group in groups:
        if not all(math.isfinite(value) for value in group):
            marks.append(NONFINITE)
        else:
            marks.append(BARS[min(int((max(group) - low) / height * len(BARS)), len(BARS) - 1)])
    return "".join(marks)


def risk_style(risk: float) -> str:
    """Returns the colour of the ladder's usual lines: 0.3 warns, 0.5 alarms."""
    if not math.isfinite(risk):
        return "dim"
    if risk >= 0.5:
        return "bold red"
    return "yellow" if risk >= 0.3 else "green"


def _figures(view: WatchView) -> RenderableType:
    if view.record is None:
        return Text("no step yet", style="dim")
    record = view.record
    table = Table.grid(padding=(0, 2))
    cells = {
        "step": str(record.step),
        "loss": _number(record.loss) if record.loss_seen else "",
        "gradient norm": _number(record.grad_norm) if record.grad_norm_seen else "",
        "learning rate": _known(record.lr),
        "loss scale": _known(record.loss_scale),
        "step time": _known(record.step_time_s * 1000, " ms"),
        **{name: _number(value) for name, value in islice(view.observed.items(), MAX_OBSERVED)},
    }
    left_out = len(view.observed) - MAX_OBSERVED
    if left_out > 0:
        cells["further values"] = str(left_out)
    cells = {name: value for name, value in cells.items() if value}
    items = list(cells.items())
    for index in range(0, len(items), 3):
        row = [Text.assemble((f"{n} ", "dim"), v) for n, v in items[index : index + 3]]
        table.add_row(*row)
    risk = Text.assemble(("risk ", "dim"), (_number(view.risk), risk_style(view.risk)))
    return Group(table, risk)


def _curves(view: WatchView) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_row(Text("loss", style="dim"), Text(sparkline(view.losses)))
    if view.risks:
        style = risk_style(view.risk)
        table.add_row(
            Text("risk", style="dim"), Text(sparkline(view.risks, span=(0.0, 1.0)), style=style)
        )
    return table


def _events(view: WatchView) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for step, kind, sentence in view.events:
        table.add_row(Text("" if step is None else str(step)), Text(kind), Text(sentence))
    return table


def _number(value: float) -> str:
    return f"{value:.4g}"


def _known(value: float, unit: str = "") -> str:
    return "" if math.isnan(value) else f"{value:.4g}{unit}"
