"""Draws a frame of `supervisor watch` with rich, on as much of the screen as there is."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from itertools import islice, pairwise

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from supervisor.cli.watch.view import RankLine, WatchEvent, WatchView
from supervisor.risk_lines import RiskLines

BARS = "▁▂▃▄▅▆▇█"
NONFINITE = "×"
WIDTH, HEIGHT = 80, 24
LABEL = 11
"""Columns of a chart's labels."""
CELL = 24
"""Columns of a name and its figure."""
KIND = 15
"""Columns of the longest kind of event."""
TALLEST_RISK = 8
"""Most lines of the risk chart; more would not show more."""


def build_panel(view: WatchView, width: int = WIDTH, height: int | None = None) -> Panel:
    """Returns the frame; names given by the script are never read as markup.

    Args:
        view: what to show.
        width: columns of the screen.
        height: lines to fill; None for as many as needed.
    """
    inner = max(20, width - 4)
    lines = (height or HEIGHT) - 2
    figures: list[RenderableType] = [
        line
        for text in view.first_lines
        for line in _wrapped(text, inner, None if text is view.first_lines[-1] else 2)
    ]
    figures += _figures(view, inner, most=max(2, lines // 3))
    figures += [Text(text, "bold yellow") for text in view.shortfalls[:1]]
    figures += rank_rows(view.ranks, most=max(2, lines // 4))
    room = max(3, lines - len(figures))
    shown = list(view.events)[-max(2, room // 2 if view.losses else room) :]
    # The curves get the lines that the events leave; without curves the events get all.
    charts = _charts(view, inner, room - len(shown)) if view.losses else []
    parts: list[RenderableType] = [*figures, *charts]
    if shown:
        parts.append(_events(shown))
    return Panel(
        Group(*parts),
        title=Text(view.title, no_wrap=True),
        title_align="left",
        subtitle=Text(f"{view.state}, attempt {view.attempt}" if view.attempt else view.state),
        width=width,
        height=height,
    )


def columns(values: Sequence[float], width: int) -> list[float]:
    """Returns at most `width` values, each the largest of its share; NaN if one is not finite."""
    count = min(width, len(values))
    edges = [index * len(values) // count for index in range(count)] + [len(values)]
    shares = [values[a:b] for a, b in pairwise(edges)]
    return [max(s) if all(map(math.isfinite, s)) else math.nan for s in shares]


def chart(
    values: Sequence[float], width: int, height: int, *, span: tuple[float, float] | None = None
) -> list[str]:
    """Returns values as bars of `height` lines, the highest line first."""
    low, high = span or _span(values)
    steps = height * len(BARS)
    lines = [""] * height
    for value in columns(values, width):
        if math.isnan(value):
            level = -1
        else:
            level = min(int((value - low) / ((high - low) or 1.0) * steps), steps - 1)
        for line in range(height):
            part = level - (height - 1 - line) * len(BARS)
            mark = " " if part < 0 else BARS[min(part, len(BARS) - 1)]
            lines[line] += NONFINITE if level < 0 else mark
    return lines


def _wrapped(text: str, width: int, most: int | None) -> list[Text]:
    """Returns at most so many lines of a sentence; a command has as many as it needs."""
    return [
        Text(line, no_wrap=True)
        for line in textwrap.wrap(
            text, width, max_lines=most, placeholder=" ...", break_on_hyphens=False
        )
    ]


def risk_style(risk: float, lines: RiskLines) -> str:
    """Returns the colour: yellow above the run's warning line, red above its alarm line."""
    if not math.isfinite(risk):
        return "dim"
    if lines.is_alarm(risk):
        return "bold red"
    return "yellow" if lines.is_warning(risk) else "green"


def _span(values: Sequence[float]) -> tuple[float, float]:
    finite = [value for value in values if math.isfinite(value)]
    return (min(finite), max(finite)) if finite else (0.0, 0.0)


def _figures(view: WatchView, width: int, *, most: int) -> list[RenderableType]:
    """Returns at most `most` lines of names and figures; counts those left out."""
    abreast = max(1, width // CELL)
    cells = {**record_cells(view), **view.facts}
    room = most * abreast - len(cells) - 1
    cells |= {name: _number(value) for name, value in islice(view.observed.items(), max(0, room))}
    left_out = len(view.observed) - max(0, room)
    if left_out > 0 and view.observed:
        cells["further values"] = str(left_out)
    items = [Text.assemble((f"{n} ", "dim"), v, no_wrap=True) for n, v in cells.items() if v]
    if view.record is not None:
        risk = (_number(view.risk), risk_style(view.risk, view.lines))
        items.append(Text.assemble(("risk ", "dim"), risk, no_wrap=True))
    rows: list[RenderableType] = [] if view.record else [Text("no step yet", style="dim")]
    for row in _rows(items, width):
        rows.append(row)
    return rows


def _rows(items: Sequence[Text], width: int) -> list[Text]:
    """Arranges the items in columns; a long one takes two."""
    rows, line = [], Text()
    for item in items:
        if line.cell_len and line.cell_len + item.cell_len > width:
            rows.append(line)
            line = Text()
        line.append_text(item)
        line.append(" " * (-line.cell_len % CELL or 2))
    return [row for row in [*rows, line] if row.cell_len]


def record_cells(view: WatchView) -> dict[str, str]:
    """Returns name → figure of the newest step; empty texts are not known."""
    record = view.record
    if record is None:
        return {}
    return {
        "step": str(record.step),
        "loss": _number(record.loss) if record.loss_seen else "",
        "gradient norm": _number(record.grad_norm) if record.grad_norm_seen else "",
        "learning rate": _known(record.lr),
        "loss scale": _known(record.loss_scale),
        "step time": _known(record.step_time_s * 1000, " ms"),
    }


def rank_rows(ranks: Sequence[RankLine], most: int) -> list[RenderableType]:
    """Returns a line for each rank; of more than `most` those that are the farthest behind."""
    shown = list(ranks)
    if len(shown) > most:
        behind = sorted(shown, key=lambda line: (-1 if line.step is None else line.step, line.rank))
        shown = sorted(behind[: most - 1], key=lambda line: line.rank)
    rows: list[RenderableType] = [_rank_row(line) for line in shown]
    if len(shown) < len(ranks):
        rows.append(Text(f"{len(ranks) - len(shown)} further ranks, none behind these", "dim"))
    return rows


def _rank_row(line: RankLine) -> Text:
    cells = {
        "rank": str(line.rank),
        "step": "none yet" if line.step is None else str(line.step),
        "loss": _known(line.loss),
        "step time": _known(line.step_time_s * 1000, " ms"),
        "memory": _known(line.memory_gib, " GiB") if line.memory_gib else "",
        "ago": _known(line.ago_s, " s"),
    }
    row = Text(no_wrap=True)
    for name, value in cells.items():
        if value:
            row.append(f"{name} ", "dim").append(f"{value:<9} ")
    return row


def _charts(view: WatchView, width: int, lines: int) -> list[RenderableType]:
    """Returns the curves on about this many lines, three quarters for the loss."""
    risk_lines = max(1, min(TALLEST_RISK, lines // 4)) if view.risks else 0
    axis = _axis(view.steps, min(width - LABEL, len(view.steps))) if lines > risk_lines + 1 else []
    loss_lines = max(1, lines - risk_lines - len(axis))
    low, high = _span(view.losses)
    drawn = _chart("loss", view.losses, width, loss_lines, (low, high), style="")
    if view.risks:
        drawn += _chart(
            "risk", view.risks, width, risk_lines, (0.0, 1.0), risk_style(view.risk, view.lines)
        )
    return drawn + axis


def _axis(steps: Sequence[int], width: int) -> list[RenderableType]:
    """Returns the steps below a chart of so many columns: first, last, and middle if there is
    room."""
    if not steps:
        return []
    marks = [f"{steps[place]:,}" for place in (0, len(steps) // 2, len(steps) - 1)]
    if sum(map(len, marks)) + 4 > width:
        del marks[1]
    room = width - sum(map(len, marks))
    if len(marks) == 3:  # the middle one begins at its column, as far as its neighbours let it
        left = min(max(1, width // 2 - len(marks[0])), room - 1)
        text = marks[0] + " " * left + marks[1] + " " * (room - left) + marks[2]
    else:
        text = " … ".join(dict.fromkeys(marks)) if room < 1 else (" " * room).join(marks)
    return [Text(f"{'step':<{LABEL}}{text}", "dim", no_wrap=True)]


def _chart(
    name: str,
    values: Sequence[float],
    width: int,
    lines: int,
    span: tuple[float, float],
    style: str,
) -> list[RenderableType]:
    drawn = chart(values, width - LABEL, lines, span=span)
    labels = [""] * lines
    labels[-1] = _number(span[0])
    labels[0] = name if lines < 3 else f"{name} {_number(span[1])}"
    return [
        Text.assemble((f"{label[: LABEL - 1]:<{LABEL}}", "dim"), (row, style), no_wrap=True)
        for label, row in zip(labels, drawn, strict=True)
    ]


def _events(events: Sequence[WatchEvent]) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    for wide in (8, max(len(str(event.step or "")) for event in events), KIND):
        table.add_column(no_wrap=True, min_width=wide)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for event in events:
        step = "" if event.step is None else str(event.step)
        kind = event.kind.replace("_", " ")
        table.add_row(Text(event.time, style="dim"), Text(step), Text(kind), Text(event.sentence))
    return table


def _number(value: float) -> str:
    return f"{value:.4g}"


def _known(value: float, unit: str = "") -> str:
    return "" if math.isnan(value) else f"{value:.4g}{unit}"
