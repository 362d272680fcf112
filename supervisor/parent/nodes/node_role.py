"""Which of the nodes' parents decides: the one that can listen where the nodes meet."""

from __future__ import annotations

import errno
import socket
import time
from dataclasses import dataclass
from typing import Any

from supervisor.errors import UsageError
from supervisor.ranks import RankLaunch

DEFAULT_PORT = 29400
"""torchrun's, for c10d."""
STATIC_PORT = 29500
"""torchrun's, for --master-addr."""
BACKENDS = ("c10d", "static")
JOIN_S = 600.0
NAME_S = 60.0
"""A cluster's name server may not know a pod yet that has just begun."""
_LOOK_AGAIN_S = 1.0
LAST_CALL_S = 30.0
_TRUE = ("1", "true", "t", "yes", "y")
_FALSE = ("0", "false", "f", "no", "n")
_KNOWN = ("is_host", "join_timeout", "last_call_timeout", "timeout")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRole:
    """This node's part in a run of several nodes.

    Attributes:
        host, port: where the nodes' parents meet; ranks and agents meet at the same host.
        listener: of the parent that decides; None for the others.
        join_s: how long is waited for nodes that have not come.
        last_call_s: how long is waited for more nodes where enough have come.
    """

    host: str
    port: int
    listener: socket.socket | None
    join_s: float = JOIN_S
    last_call_s: float = LAST_CALL_S

    @property
    def is_first_node(self) -> bool:
        return self.listener is not None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def take_node_role(launch: RankLaunch) -> NodeRole:
    """Returns this node's seat.

    The node with ``--node-rank 0`` decides; without these numbers the one whose machine the
    endpoint names, and of several parents there the one that comes first.

    Raises:
        UsageError: an option of several nodes is missing or cannot be.
    """
    if launch.rdzv_backend not in BACKENDS:
        raise UsageError(
            f"run: --rdzv-backend {launch.rdzv_backend}: give c10d (or static), the nodes meet "
            "at --rdzv-endpoint without a service of others"
        )
    if launch.node_rank >= launch.most_nodes:
        raise UsageError(
            f"run: --node-rank {launch.node_rank}: of {launch.most_nodes} nodes the last has "
            f"number {launch.most_nodes - 1}"
        )
    conf = _conf(launch.rdzv_conf)
    host, port = _endpoint(launch)
    is_host = conf.get("is_host", "").lower()
    if is_host not in (*_TRUE, *_FALSE, ""):
        raise UsageError(f"run: --rdzv-conf is_host={is_host}: give true or false")
    must = launch.node_rank == 0 or is_host in _TRUE
    never = launch.node_rank > 0 or is_host in _FALSE
    join_s = _seconds(conf, "join_timeout", _seconds(conf, "timeout", JOIN_S))
    return NodeRole(
        host=host,
        port=port,
        listener=None if never else _listen(host, port, must=must, join_s=join_s),
        join_s=join_s,
        last_call_s=_seconds(conf, "last_call_timeout", LAST_CALL_S),
    )


def _endpoint(launch: RankLaunch) -> tuple[str, int]:
    given, default = launch.rdzv_endpoint, DEFAULT_PORT
    if not given and launch.master_addr:
        given, default = launch.master_addr, launch.master_port or STATIC_PORT
    host, _, port = given.rpartition(":") if ":" in given else (given, "", "")
    if not host:
        raise UsageError(
            "run: --nnodes: several nodes have to meet: give the same --rdzv-endpoint HOST:PORT on "
            "each, where HOST is one of them"
        )
    if port and not (port.isdecimal() and 0 < int(port) < 2**16):
        raise UsageError(f"run: --rdzv-endpoint {given}: give HOST:PORT, with a port from 1")
    return host.strip("[]"), int(port or default)


def _conf(text: str) -> dict[str, str]:
    """Reads ``K=V,...``, with torchrun's keys."""
    found: dict[str, str] = {}
    for item in filter(None, text.split(",")):
        key, sign, value = (word.strip() for word in item.partition("="))
        if not sign or key not in _KNOWN:
            raise UsageError(f"run: --rdzv-conf {item}: give K=V with K one of {', '.join(_KNOWN)}")
        found[key] = value
    return found


def _seconds(conf: dict[str, str], key: str, default: float) -> float:
    if key not in conf:
        return default
    try:
        seconds = float(conf[key])
    except ValueError:
        seconds = -1.0
    if not 0.0 < seconds < float("inf"):
        raise UsageError(f"run: --rdzv-conf {key}={conf[key]}: give seconds")
    return seconds


def _look_up(host: str, port: int, within_s: float) -> tuple[socket.AddressFamily, Any]:
    deadline = time.monotonic() + within_s
    while True:
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            return family, address
        except OSError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_LOOK_AGAIN_S)


def _listen(host: str, port: int, *, must: bool, join_s: float) -> socket.socket | None:
    """Returns a socket that listens there; None if it is not here, or another process does."""
    try:
        family, address = _look_up(host, port, min(join_s, NAME_S) if must else 0.0)
    except OSError as error:
        if must:
            raise UsageError(
                f"run: {host}: {error.strerror or error}: the nodes meet at a host "
                "that this one knows"
            ) from error
        return None
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        try:
            listener.bind(address)
        except OSError as error:
            if not must or error.errno != errno.EADDRNOTAVAIL:
                raise
            listener.bind(("", port, *address[2:]))  # reached by an address that is not its own
        listener.listen(128)
    except OSError as error:
        listener.close()
        if must:
            raise UsageError(
                f"run: {host}:{port}: {error.strerror}: give another port to all nodes"
            ) from error
        return None
    listener.setblocking(False)
    return listener
