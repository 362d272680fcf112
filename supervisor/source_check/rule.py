"""What a rule is."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from supervisor.source_check.finding import Risk
from supervisor.source_check.source import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One mistake that can be recognised from source text alone.

    A rule stays silent if it is unsure: a false warning costs more trust than a missed mistake.
    """

    name: str
    """In kebab case; stable, because suppression comments in users' code hold it."""
    risk: Risk
    message: str
    """What is wrong and what it does to a training."""
    fix: str
    """What to write instead."""
    find: Callable[[Source], Iterable[ast.AST]]
    """Yields the places of one file where the mistake is made."""
