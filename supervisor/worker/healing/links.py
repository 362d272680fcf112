"""The connections by which collectives are really made, apart from the script's own groups.

A broken connection cannot be mended within a group of torch, and nobody may take the script's
groups from it. So behind each of them is one of ours, made anew whenever a rank has come back.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any

import torch

from supervisor.storage.run.healing_memory import HealingMailbox

DECIDES_WITHIN_S = 20.0
"""For the parent to say what follows a failed collective; after that its error is the script's."""
_LOOK_S = 0.005
_SLOW_LOOK_S = 0.02
"""Where others may take as long as a start: a wait takes next to no processor."""


def _c10d() -> Any:
    return torch._C._distributed_c10d


class Gloo:
    """Attributes:
    own: torch's own class, once the script gets another (`patches_groups`).
    """

    own: Any = None


class Broken(Exception):
    """The ranks do not come together again."""


class Links:
    """One a process.

    Args:
        mailbox: of parent and ranks.
        rank, world_size: of this process.

    Attributes:
        generation: of the connections that there are.
    """

    def __init__(self, mailbox: HealingMailbox, rank: int, world_size: int) -> None:
        self._mailbox = mailbox
        self._rank = rank
        self._ranks = range(world_size)
        self.generation = 0
        self._told = 0
        self._groups: dict[str, Any] = {}
        self._made_store: Any = None

    @property
    def _store(self) -> Any:
        """The agent's, which outlives every rank."""
        if self._made_store is None:
            host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            self._made_store = _c10d().TCPStore(host, port, None, False)
        return self._made_store

    @property
    def is_outdated(self) -> bool:
        """Whether a rank has come, or comes, back since these connections were made."""
        return self._mailbox.generation != self.generation

    def of(self, group: Any, name: str) -> Any:
        """Returns the connected group behind one of the script's.

        Raises:
            RuntimeError: another rank is gone.
        """
        found = self._groups.get(name)
        if found is None:
            self._meet(group, name)
            store = self._prefixed(f"{self.generation}/{name}")
            found = torch.distributed.ProcessGroup(store, group.rank(), group.size())
            backend = Gloo.own(store, group.rank(), group.size(), _timeout_of(group))
            kind: Any = torch.distributed.ProcessGroup.BackendType
            found._register_backend(torch.device("cpu"), kind.GLOO, backend)
            self._groups[name] = found
        return found

    def _meet(self, group: Any, name: str) -> None:
        """Returns when all ranks of a group have come to connect it: gloo itself would wait for a
        dead one until its timeout."""
        store = self._prefixed(f"{self.generation}/{name}/here")
        store.set(str(group.rank()), "")
        keys = [str(rank) for rank in range(group.size())]
        limit_s = _timeout_of(group).total_seconds()
        until = time.monotonic() + limit_s
        pause_s = _LOOK_S
        while not store.check(keys):
            if self.is_outdated or self._mailbox.declined:
                raise RuntimeError("Connection closed by a rank that was killed")
            if time.monotonic() > until:
                raise RuntimeError(f"wait timeout after {1000 * limit_s:.0f}ms in group {name}")
            time.sleep(pause_s)
            pause_s = _SLOW_LOOK_S

    def drop(self) -> None:
        """Closes all of them, so that whoever waits for this rank in one fails, too."""
        self._groups.clear()

    def await_word(self) -> bool:
        """Called when a collective has failed. Returns whether a rank comes back."""
        until = time.monotonic() + DECIDES_WITHIN_S
        while time.monotonic() < until and not self._mailbox.declined:
            if self.is_outdated:
                return True
            time.sleep(_LOOK_S)
        return False

    def come_together(self, completed: Mapping[str, int]) -> Mapping[int, Mapping[str, int]] | None:
        """Returns how many collectives each rank has completed in each group, once all ranks have
        called this in the newest generation, whose connections can be made then; None before.

        Args:
            completed: of this rank; the same in all calls of a generation.
        """
        newest = self._mailbox.generation
        store = self._prefixed(f"{newest}/at")
        if self._told != newest:
            self.drop()
            self._told = newest
            store.set(str(self._rank), json.dumps(dict(completed)))
        keys = [str(rank) for rank in self._ranks]
        if not store.check(keys):
            return None
        self.generation = newest
        return {rank: json.loads(store.get(str(rank))) for rank in self._ranks}

    def wait_together(self, completed: Mapping[str, int]) -> Mapping[int, Mapping[str, int]]:
        """The same; returns when all have come.

        Raises:
            Broken: the parent ends all ranks instead.
        """
        while True:
            found = self.come_together(completed)
            if found is not None:
                return found
            if self._mailbox.declined:
                raise Broken("Connection closed by a rank that was killed, and is not back")
            time.sleep(_SLOW_LOOK_S)

    def _prefixed(self, name: str) -> Any:
        return _c10d().PrefixStore(f"supervisor/healing/{name}", self._store)


def _timeout_of(group: Any) -> Any:
    return group._get_backend(torch.device("cpu")).options._timeout


def problem_here() -> str:
    """Returns why ranks of this machine are not healed; empty if nothing speaks against it."""
    if torch.cuda.is_available():
        return "with a GPU the collectives are NCCL's"
    if os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":
        return "TORCH_DISTRIBUTED_DEBUG=DETAIL makes collectives of its own"
    if os.environ.get("TORCH_DIST_INIT_BARRIER", "0") == "1":
        return "TORCH_DIST_INIT_BARRIER=1 counts ranks in a store"
    return ""


def is_agents_store(store: Any) -> bool:
    """Whether a store of the script's is the agent's, which outlives every rank."""
    while isinstance(store, _c10d().PrefixStore):
        store = store.underlying_store
    port = getattr(store, "port", None)
    return port is not None and str(port) == os.environ.get("MASTER_PORT")
