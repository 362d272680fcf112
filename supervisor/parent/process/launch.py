"""What the parent is to run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from supervisor.ranks import RankLaunch
from supervisor.settings import PolicySettings, RunSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """One run, as the command line or a program describes it.

    Attributes:
        kind: ``script`` (a file), ``function`` (``file.py:function``) or ``module`` (as ``-m``).
        target: the file, or the module's dotted name.
        function: name of the function when `kind` is ``function``.
        arguments: the script's own.
        run_dir: where everything is kept; created if missing.
        resume_arguments: appended to `arguments` from the second attempt on.
        quiet: print nothing of our own.
        resume: continue the run in `run_dir`, which otherwise must not hold a run.
        resume_from: ``last-stable``, ``latest`` or a step; implies `resume`. None: chosen by how
            the run ended.
        force: take the run over although a supervisor on another host seems to be alive.
        ranks: how many ranks are started where; None: one process, started by us.
        command: what the user typed, for ``run.json``.
    """

    kind: Literal["script", "function", "module"]
    target: str
    run_dir: Path
    settings: RunSettings
    policy: PolicySettings
    function: str | None = None
    arguments: tuple[str, ...] = ()
    resume_arguments: tuple[str, ...] = ()
    quiet: bool = False
    resume: bool = False
    resume_from: str | None = None
    force: bool = False
    command: tuple[str, ...] = ()
    ranks: RankLaunch | None = None

    @property
    def is_resume(self) -> bool:
        return self.resume or self.resume_from is not None

    def worker_arguments(self, attempt: int) -> tuple[str, ...]:
        """Returns the script's arguments in the given attempt, counted from 1."""
        return self.arguments + (self.resume_arguments if attempt > 1 else ())

    @property
    def name(self) -> str:
        """Of the script, the same on all nodes."""
        return self.target if self.kind == "module" else Path(self.target).name

    def for_other_nodes(self) -> dict[str, Any]:
        """Returns what the parents of other nodes are to run."""
        return {
            "kind": self.kind,
            "target": self.target,
            "function": self.function,
            "arguments": self.arguments,
            "resume_arguments": self.resume_arguments,
            "name": self.name,
        }
