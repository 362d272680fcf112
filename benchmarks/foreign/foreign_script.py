"""One public script: where it is, and how it is started."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Foreign:
    """One script of a public repository, and how it is started.

    Attributes:
        name: unique, what the table shows.
        repository: of GitHub, "owner/name"; its checkout is looked for under the second part.
        script: with its arguments, from `folder` of the checkout.
        kill_at: the step at which it is killed with SIGKILL.
        path: of the checkout, put on PYTHONPATH, for a script that imports its own package.
        steps: a script without an end of its own leaves after so many steps; 0 for its own end.
        needs: packages beyond ours.
        environment: variables, ``NAME=value`` by spaces.
        material: data that it would fetch, see `material.py`.
        ranks: processes that torchrun starts, and the supervisor with the same options.
    """

    name: str
    repository: str
    script: str
    kill_at: int
    folder: str = "."
    path: str = ""
    steps: int = 0
    needs: str = ""
    environment: str = ""
    material: str = ""
    ranks: int = 1

    @property
    def checkout(self) -> str:
        return self.repository.split("/")[1]
