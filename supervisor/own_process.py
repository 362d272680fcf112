"""How processes of ours are started: with which command, and with which environment.

A variable that only we need is given back before the script can look (`give_back`), so that the
script and what it starts have the environment of the user.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from supervisor.ranks import RankPlace

PARENT = "SUPERVISOR_PARENT_PID"
IS_RANK = "SUPERVISOR_IS_RANK"
"""Set by the agent: this worker is one of several, and torchrun's variables say which."""
STREAMS = "SUPERVISOR_STREAMS"
"""Set by the agent: local rank → where its standard output and standard error are opened."""
KEPT = "SUPERVISOR_KEPT"
"""Set by the agent: local rank → memory of the parent's for the rank's newest states."""
HEALING = "SUPERVISOR_HEALING"
"""Set by the agent: memory of the parent's by which a rank that dies comes back alone."""
STANDBY = "SUPERVISOR_STANDBY"
"""Set by the agent: this process waits until a rank dies, and becomes that rank."""
KUBEFLOW_URL = "KUBEFLOW_TRAINER_SERVER_URL"
"""Set by Kubeflow Trainer's controller: where the progress of a TrainJob is told."""
WRITES_BELOW = "SUPERVISOR_WRITES_BELOW"
"""Set by the doctor: a folder, and after it the file that names writes outside of it."""
_GIVES_BACK = "SUPERVISOR_GIVES_BACK"
_SALT = "PYTHONHASHSEED"
_BEGIN = Path(__file__).with_name("begin.py")

loaded_at_start: frozenset[str] = frozenset()
"""What python itself had loaded when this process began; set by `begin.py`."""


def command(module: str) -> tuple[str, ...]:
    """Returns how `main` of one of our modules is run in a process of its own."""
    return (sys.executable, str(_BEGIN), module)


def worker_environment(given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns a worker's environment: the given one, and what is read at a process's start.

    Python salts the hashes of texts anew in each process: a set of class names would have another
    order after a restart, and each class another number. All attempts have one salt, unless the
    user has decided otherwise.
    """
    environment = dict(given)
    changes: dict[str, str] = {}
    if _SALT not in environment:
        changes[_SALT] = "0"
    was = {name: environment.get(name) for name in changes}
    return {**environment, **changes, _GIVES_BACK: json.dumps(was)}


class Given:
    """What `give_back` took out of this process's environment.

    Attributes:
        parent: number of the process to die with; 0: of none.
        place: among the ranks that were started together.
        streams: where standard output and standard error are to be opened; empty: as they are.
        kept: memory that outlives this process, for its newest states; empty: there is none.
        healing: see `HEALING`; empty: all ranks are started again.
        salt: of the hashes, where we chose it; children whose sets must agree with ours need it.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        was = json.loads(environment.get(_GIVES_BACK, "{}"))
        self.was: dict[str, str | None] = was
        self.parent = int(environment.get(PARENT, "0"))
        self._is_rank = environment.get(IS_RANK) == "1"
        self.place = RankPlace.of(environment) if self._is_rank else RankPlace()
        self.streams = self._of_rank(environment.get(STREAMS))
        self._all_kept = environment.get(KEPT)
        self.kept = self._of_rank(self._all_kept)
        told = environment.get(HEALING)
        self.healing: dict[str, Any] = json.loads(told) if told and self._is_rank else {}
        self.salt = environment.get(_SALT) if _SALT in was else None

    def _of_rank(self, told: str | None) -> list[str]:
        """Returns what a variable of the agent's says for this rank."""
        ranks = json.loads(told) if told and self._is_rank else {}
        found: list[str] = ranks.get(str(self.place.local_rank), [])
        return found

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """Returns what a worker is started with that takes this one's place, where `given` is the
        user's environment."""
        again = worker_environment(given)
        again[PARENT] = str(self.parent)
        if self._is_rank:
            again[IS_RANK] = "1"
        if self._all_kept:
            again[KEPT] = self._all_kept
        if self.healing:
            again[HEALING] = json.dumps(self.healing)
        return again


def give_back(environment: MutableMapping[str, str]) -> Given:
    """Makes an environment the user's own again; called before the script can look."""
    given = Given(environment)
    for name in (_GIVES_BACK, PARENT, IS_RANK, STREAMS, KEPT, HEALING, STANDBY):
        environment.pop(name, None)
    for name, value in given.was.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    return given
