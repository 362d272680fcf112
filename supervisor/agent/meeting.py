"""How the nodes of one attempt find each other: through a store of torch's that node 0 has.

Who takes part, and with which number, is the first parent's decision, so there is no voting as in
torch's dynamic rendezvous: two protocols of membership would have to agree. Each attempt has a
store of its own, so nothing of an earlier one is in it (pytorch #135712, #167288).
"""

from __future__ import annotations

import datetime
import uuid

from torch._C._distributed_c10d import TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)

from supervisor.ranks import NodePlace

MEETS_WITHIN_S = 300.0
"""All nodes are ordered to start at once; the slowest has to import torch again before."""


class Meeting(RendezvousHandler):
    """torch's agent asks it where this node stands; `begin` is called before each attempt.

    The ranks use the same store (TORCHELASTIC_USE_AGENT_STORE), as with torchrun, so that no port
    has to be found for one of their own, and lost to another process meanwhile.
    """

    def __init__(self) -> None:
        self._place = NodePlace()
        self._store: TCPStore | None = None
        self._run_id = uuid.uuid4().hex

    def begin(self, place: NodePlace) -> int:
        """Makes the store of an attempt, or finds it; returns its port.

        Raises:
            RuntimeError: the port is taken, or node 0 is not reached.
        """
        self._store = None
        self._store = TCPStore(
            place.host,
            place.port,
            is_master=place.number == 0,
            timeout=datetime.timedelta(seconds=MEETS_WITHIN_S),
            wait_for_workers=False,
        )
        self._place = place
        self._run_id = place.run_id or self._run_id
        return int(self._store.port)

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        store, place = self._store, self._place
        assert store is not None, "`begin` comes first"
        where = RendezvousStoreInfo(place.host, store.port)
        return RendezvousInfo(store, place.number, place.count, where)

    def get_backend(self) -> str:
        return "c10d"

    def get_run_id(self) -> str:
        return self._run_id

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """The parent decides when the run is over."""

    def num_nodes_waiting(self) -> int:
        return 0

    def shutdown(self) -> bool:
        self._store = None
        return True
