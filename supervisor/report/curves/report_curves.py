"""The curves of a whole run, or of two, for a page that is read later."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from supervisor.masking import mask_all
from supervisor.report.curves.curve_document import DrawnRun, curve_document
from supervisor.report.curves.curves import curves_of
from supervisor.report.facts.run_data import RunData


def document_of(runs: Sequence[RunData], names: Sequence[str] = ()) -> dict[str, Any] | None:
    """Returns the document for `Curves`, with secrets masked; None without a step.

    `names`: how the runs are called; their folders' names by default.
    """
    names = names or [Path(run.root).name for run in runs]
    drawn = [
        DrawnRun(name=name, curves=curves_of(run), events=run.events, lines=run.lines)
        for name, run in zip(names, runs, strict=True)
    ]
    document = curve_document(drawn)
    # Numbers, which most of it is, hold no secret.
    texts = mask_all({name: value for name, value in document.items() if name != "curves"})
    return {**document, **texts} if document["panels"] else None
