"""A rank dies in a collective: does the other leave it, with its buffer whole, and make it again?

``python -m benchmarks.gpu.revoked [--device cpu] [--way reconfigured]``: two ranks, each on its own
device. The first waits on the host until each collective is over (the gate), so nothing reads
its buffer before. The second dies before its last one; its parent says so, the first revokes, and
both make the collective again: ``made anew`` over new communicators, ``reconfigured`` within the
same group (torch 2.14: `nccl2`, gloo). Prints JSON: ``same``, ``revoked_s``, ``again_s``,
``gate_us`` and ``plain_us`` a collective.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

SIZE, BEFORE = 1 << 18, 50
"""Numbers of a collective; collectives before the death, with the gate and without."""
WAITS = datetime.timedelta(seconds=120)
_LOOK_S = 0.0002


class Rank:
    """One process."""

    def __init__(self, device: str, way: str, store: Any, rank: int) -> None:
        self.rank, self.way, self.store = rank, way, store
        self.device = torch.device("cpu" if device == "cpu" else f"cuda:{rank}")
        self.backend = "gloo" if device == "cpu" else "nccl2" if way == "reconfigured" else "nccl"
        if device == "cuda":
            torch.cuda.set_device(self.device)
        if way == "reconfigured":
            self.init("all", enable_reconfigure=True)

    def init(self, name: str, **more: bool) -> None:
        store = dist.PrefixStore(name, self.store)
        dist.init_process_group(
            self.backend, store=store, rank=self.rank, world_size=2, timeout=WAITS, **more
        )

    def connect(self, generation: int) -> None:
        """With the other one, who does the same; each death begins a generation."""
        if self.way == "made anew":
            self.init(f"generation {generation}")
            return
        c10d: Any = dist.distributed_c10d
        self.store.set(f"{generation}/{self.rank}", c10d._get_reconfigure_handle())
        handles = [self.store.get(f"{generation}/{rank}").decode() for rank in (0, 1)]
        c10d._reconfigure(uuid=generation, handles=handles).wait()

    def leave(self) -> None:
        """Revokes what is under way; a reconfigured group does so itself."""
        if self.way == "made anew":
            dist.distributed_c10d._abort_process_group()

    def gated(self, tensor: torch.Tensor) -> bool:
        """Returns whether a collective is over; False once the other one is known to be dead."""
        try:
            work = dist.all_reduce(tensor, async_op=True)
            while not work.is_completed():
                if self.store.check(["died"]):
                    return False
                time.sleep(_LOOK_S)
            work.wait()
        except RuntimeError:  # gloo itself says so
            self.store.get("died")
            return False
        return True

    def given(self, number: int) -> torch.Tensor:
        return given(number, self.rank).to(self.device)

    def timed(self, *, gate: bool) -> float:
        began = time.perf_counter()
        for number in range(BEFORE):
            tensor = self.given(number)
            if gate:
                self.gated(tensor)
            else:
                dist.all_reduce(tensor)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - began) / BEFORE * 1e6


def survive(me: Rank) -> dict[str, Any]:
    """Of the first rank."""
    found: dict[str, Any] = {"plain_us": me.timed(gate=False), "gate_us": me.timed(gate=True)}
    tensor = me.given(BEFORE)
    gave = tensor.clone()
    assert not me.gated(tensor)
    began = time.perf_counter()
    me.leave()
    found["revoked_s"] = time.perf_counter() - began
    me.store.set("left", "")
    tensor.copy_(gave)
    me.connect(2)
    dist.all_reduce(tensor)
    found["same"] = bool(torch.equal(tensor, gave + given(BEFORE, 1).to(me.device)))
    found["again_s"] = time.perf_counter() - began
    return found


def come_back(me: Rank) -> dict[str, Any]:
    """Of the process in the place of the dead one."""
    tensor = me.given(BEFORE)
    if me.way == "made anew":
        me.store.get("left")
    me.connect(2)
    dist.all_reduce(tensor)
    if me.device.type == "cuda":
        torch.cuda.synchronize()
    return {}


def given(number: int, rank: int) -> torch.Tensor:
    """What a rank gives to a collective."""
    draw = torch.Generator().manual_seed(10 * number + rank)
    return torch.randn(SIZE, generator=draw)


def be_rank(options: argparse.Namespace) -> None:
    store = dist.TCPStore("127.0.0.1", options.port, None, False, WAITS)
    is_back = options.generation == 2
    me = Rank(options.device, options.way, store, options.rank)
    if is_back:
        come_back(me)
        return
    me.connect(1)
    if me.rank == 0:
        print(json.dumps(survive(me)), flush=True)
        os._exit(0)  # what was revoked may not end well
    for gate in (False, True):
        me.timed(gate=gate)
    os._exit(9)


def main() -> int:
    """Returns 1 if the collective that was made again has another result, or none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--way", default="made anew", choices=("made anew", "reconfigured"))
    for name in ("rank", "generation", "port"):
        parser.add_argument(f"--{name}", type=int)
    options = parser.parse_args()
    if options.rank is not None:
        be_rank(options)
        return 0
    store = dist.TCPStore("127.0.0.1", 0, None, True, WAITS, wait_for_workers=False)
    words = [sys.executable, "-m", "benchmarks.gpu.revoked", "--device", options.device]
    words += ["--way", options.way, "--port", str(store.port)]

    def start(rank: int, generation: int) -> subprocess.Popen[str]:
        more = ["--rank", str(rank), "--generation", str(generation)]
        environment = {**os.environ, "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}  # no watchdog kills
        return subprocess.Popen([*words, *more], env=environment, stdout=subprocess.PIPE, text=True)

    first, second = start(0, 1), start(1, 1)
    second.communicate()
    store.set("died", "")
    again = start(1, 2)
    try:
        told, _ = first.communicate(timeout=WAITS.seconds)
        again.wait(WAITS.seconds)
    except subprocess.TimeoutExpired:
        told = ""
    finally:
        for process in (first, again):
            process.kill()
            process.communicate()
    print(told or '{"same": false}', end="")
    return int(not (told and json.loads(told)["same"]))


if __name__ == "__main__":
    raise SystemExit(main())
