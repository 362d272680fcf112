"""The twelve points that a device must show, in order; each gives rows of what was tried."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.runs import SUPERVISOR, Ended, differences, run
from benchmarks.gpu.trainings import FAULT_AT, KINDS, NEEDS_CUDA
from benchmarks.gpu.waits import KINDS as WAITING_KINDS
from supervisor.device_health import Nvml
from supervisor.training_state.device_copies import copy_aside
from supervisor.training_state.device_generators import device_states

WAITS, TIMED = (Path(__file__).with_name(name) for name in ("waits.py", "timed.py"))
GRAPHS = ("reduce-overhead", "graphed callable", "graphed step")
HALF = ("fp16 scaler", "fp16 scaler fused", "bf16", "pure half", "compiled")
HEALTHY = tuple(kind for kind in KINDS if kind not in (*GRAPHS, *HALF, "fails once"))
LATE = ("adamw fused", "adamw foreach", "fp16 scaler", "fp16 scaler fused", "accumulated")
KILLED = ("adamw fused", "recomputed", "fp16 scaler", "images", "accumulated", "gan", "closure")
WORKLOADS = {
    "5 ms, the host at its limit": (256, 2, 8),
    "20 ms": (768, 6, None),
    "5 ms, the device at its limit": (512, 2, None),
}
"""Width, layers and batch; None looks for the batch whose step takes as long."""
TURNS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One thing that was tried; `good` is None for a figure that only informs."""

    what: str
    found: str
    good: bool | None
    figures: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the points run: `device` is ``cuda``, or ``cpu`` to try the scripts without one."""

    folder: Path
    device: str = "cuda"
    steps: int = 100
    jobs: int = 8

    def words(self, kind: str, *more: str) -> list[str]:
        return [kind, "--device", self.device, "--steps", str(self.steps), *more]

    def kinds(self, wanted: Sequence[str]) -> list[str]:
        return [k for k in wanted if self.device == "cuda" or k not in NEEDS_CUDA]

    def each(self, what: Callable[[str], Row], names: Sequence[str]) -> list[Row]:
        """At the same time: for what is right or wrong, not for what takes how long."""
        with ThreadPoolExecutor(self.jobs) as pool:
            return list(pool.map(what, names))


def late_values(place: Place) -> list[Row]:
    """A NaN is left out, and all else is the same to the bit, whether a step's numbers are waited
    for or come one step later."""
    late = "auto" if place.device == "cuda" else "on"

    def one(kind: str) -> Row:
        folder, words = place.folder / "late" / kind.replace(" ", "_"), place.words(kind)
        at_once, ours = (
            run(folder / how, [*words, "--fault", "nan"], supervised=True, settings=[setting])
            for how, setting in (
                ("off", "device.late_reads=off"),
                (late, f"device.late_reads={late}"),
            )
        )
        if at_once.code or ours.code:
            return Row(what=kind, found=_failure(at_once if at_once.code else ours), good=False)
        other = differences(at_once.result(), ours.result())
        told = [(one.treatments(), one.events("update_skipped")) for one in (at_once, ours)]
        done = [(names, [event["step"] for event in events]) for names, events in told]
        said = "bit for bit" if not other else f"DIFFERS: {', '.join(other[:3])}"
        said += f"; treated: {done[1]}" if done[0] == done[1] else f"; TREATED: {done}"
        return Row(what=kind, found=said, good=not other and done[0] == done[1])

    return place.each(one, place.kinds(LATE))


def captures(place: Place) -> list[Row]:
    rows = place.each(lambda kind: _healthy(place, "capture", kind), place.kinds(GRAPHS))
    return [*rows, _generators()] if place.device == "cuda" else rows


def _generators() -> Row:
    """Seed and offset against the whole state, after draws and after a graph that draws."""
    what = "generators by seed and offset"
    graph, drawn = torch.cuda.CUDAGraph(), torch.empty(1000, device="cuda")
    generators = torch.cuda.default_generators
    equal, offsets = [], []
    with torch.cuda.graph(graph):
        drawn.uniform_()
    for draw in (drawn.normal_, graph.replay, graph.replay):
        draw()
        whole = [bytes(g.get_state().numpy().tobytes()) for g in generators]
        equal.append(device_states() == whole)
        offsets.append(generators[0].get_offset())
    said = f"{'equal' if all(equal) else 'NOT EQUAL'}; offsets {offsets}"
    return Row(what=what, found=said, good=all(equal))


def waits(place: Place) -> list[Row]:
    def one(kind: str) -> Row:
        words = [kind]
        folder = place.folder / "waits" / kind.replace(" ", "_")
        alone = run(folder / "plain", words, supervised=False, script=WAITS, suffix=".json")
        ours = run(folder / "ours", words, supervised=True, script=WAITS, suffix=".json")
        if alone.code or ours.code:
            return Row(what=kind, found=_failure(alone if alone.code else ours), good=False)
        plain, found = alone.result(), ours.result()
        allowed = 0 if "fused" in kind or kind in ("accumulated", "scaler") else 1
        more = found["typical"] - plain["typical"]
        profiled = sum(found["profiled"].values()) - sum(plain["profiled"].values())
        said = f"{more:+d} a step, mean {found['mean'] - plain['mean']:+.2f}, most "
        said += f"{found['largest']}; profiler {profiled:+.2f} a step"
        good = more <= allowed
        return Row(what=kind, found=said, good=good, figures={"plain": plain, "ours": found})

    return place.each(one, [] if place.device == "cpu" else WAITING_KINDS)


def healthy(place: Place) -> list[Row]:
    return place.each(lambda kind: _healthy(place, "healthy", kind), place.kinds(HEALTHY))


def half_precision(place: Place) -> list[Row]:
    return place.each(lambda kind: _healthy(place, "half", kind), place.kinds(HALF))


def _healthy(place: Place, name: str, kind: str) -> Row:
    folder = place.folder / name / kind.replace(" ", "_")
    alone = run(folder / "plain", place.words(kind), supervised=False)
    ours = run(folder / "ours", place.words(kind), supervised=True)
    if alone.code or ours.code:
        return Row(what=kind, found=_failure(alone if alone.code else ours), good=False)
    other = differences(alone.result(), ours.result())
    treated, warned = ours.treatments(), ours.warnings()
    said = "bit for bit" if not other else f"DIFFERS: {', '.join(other[:3])}"
    said += f"; treated: {', '.join(treated)}" if treated else ""
    said += f"; warned: {'; '.join(warned)[:200]}" if warned else ""
    return Row(what=kind, found=said, good=not (other or treated), figures={"warnings": warned})


def overhead(place: Place) -> Iterator[Row]:
    for name, (width, layers, batch) in WORKLOADS.items():
        folder = place.folder / "overhead" / name.split(",")[0].replace(" ", "_") / str(width)
        wanted_ms = float(name.split()[0])
        yield _overhead(place, name, folder, wanted_ms, width, layers, batch)


def _overhead(
    place: Place,
    name: str,
    folder: Path,
    wanted_ms: float,
    width: int,
    layers: int,
    batch: int | None,
) -> Row:
    steps = max(5, round(400 / wanted_ms))
    shape = ["--width", str(width), "--layers", str(layers), "--device", place.device]
    if batch is None:
        words = [*shape, "--warm-up", "20", "--turns", "0", "--try-batches", "16", "64"]
        asked = run(folder / "batch", words, supervised=False, script=TIMED, suffix=".json")
        took = {int(size): 1000 * s for size, s in asked.result()["tried"].items()}
        slope = max((took[64] - took[16]) / 48, 1e-3)
        batch = min(1024, max(8, round(64 + (wanted_ms - took[64]) / slope)))
    warm = round(3000 / wanted_ms)
    words = [*shape, "--batch", str(batch), "--warm-up", str(warm), "--turn-steps", str(steps)]
    players = [
        _Player(folder / n, [*words, "--turns", str(TURNS)], n == "ours") for n in ("plain", "ours")
    ]
    for turn in range(TURNS + 1):
        for player in players if turn % 2 else reversed(players):
            player.play()
    plain, ours = (player.result() for player in players)
    ratios = sorted(b / a for a, b in zip(plain["turns"], ours["turns"], strict=True))
    quarters = [100 * (q - 1) for q in statistics.quantiles(ratios, n=4)]
    plain_ms = 1000 * statistics.median(plain["turns"])
    more = 1000 * statistics.median(
        b - a for a, b in zip(plain["turns"], ours["turns"], strict=True)
    )
    said = f"{plain_ms:.2f} ms {quarters[1]:+.1f} % ({quarters[0]:+.1f} to {quarters[2]:+.1f}), "
    said += f"{more:+.2f} ms a step"
    goal = 5.0 if wanted_ms < 10 else 2.0
    figures = {"plain": plain["turns"], "ours": ours["turns"], "batch": batch}
    return Row(what=name, found=said, good=quarters[1] <= goal, figures=figures)


class _Player:
    """One process of `timed.py` that waits for its turns."""

    def __init__(self, folder: Path, words: Sequence[str], supervised: bool) -> None:
        folder.mkdir(parents=True)
        go, done = folder / "go", folder / "done"
        os.mkfifo(go)
        os.mkfifo(done)
        self._out = folder / "out.json"
        line = [sys.executable]
        line += [*SUPERVISOR, "--run-dir", str(folder / "run")] if supervised else []
        line += [str(TIMED), *words, "--go", str(go), "--done", str(done), "--out", str(self._out)]
        self._said = (folder / "said").open("w")
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            line, stdout=self._said, stderr=self._said, env=environment
        )
        self._pipes = go, done
        self._go = self._done = -1

    def play(self) -> None:
        if self._go < 0:  # waits until the process has come so far
            go, done = self._pipes
            self._go, self._done = os.open(go, os.O_WRONLY), os.open(done, os.O_RDONLY)
        os.write(self._go, b".")
        if os.read(self._done, 1) != b".":
            raise RuntimeError(f"the training ended early, with {self._process.wait()}")

    def result(self) -> Any:
        self._process.wait(120)
        return json.loads(self._out.read_text())


def snapshots(place: Place) -> list[Row]:
    """Stalls of a training with a state of about 1 GB, against one copy from the device."""
    size = ["1536", "3", "2"] if place.device == "cuda" else ["64", "1", "2"]
    words = ["--width", size[0], "--layers", size[1], "--batch", size[2], "--each", "--turns", "1"]
    words += ["--device", place.device, "--warm-up", "40", "--turn-steps", "240"]
    found = {}
    for name in ("plain", "ours"):
        ended = run(
            place.folder / "snapshots" / name,
            words,
            supervised=name == "ours",
            script=TIMED,
            suffix=".json",
            settings=("checkpoint.every_steps=100",),
        )
        if ended.code:
            return [Row(what="a large state", found=_failure(ended), good=False)]
        found[name] = ended.result()
    saved = [(e["bytes"], e["seconds"]) for e in ended.events("checkpoint_saved")]
    steps = found["ours"]["steps"]
    usual = statistics.median(steps)
    stalls = sorted(((s - usual, i) for i, s in enumerate(steps) if s > 2 * usual), reverse=True)
    of_bytes = found["ours"]["state_bytes"]
    on_device = place.device == "cuda"
    memory = [_kinds_of_memory(of_bytes)] if on_device else []
    copy_s = _one_copy(of_bytes) if on_device else 0.0
    listed = ", ".join(f"{1000 * s:.0f} ms at {i}" for s, i in stalls[:8])
    rows = [
        Row(what="one copy to pinned memory", found=f"{1000 * copy_s:.0f} ms", good=None),
        *memory,
        *([_aside(of_bytes, copy_s)] if on_device else []),
        Row(
            what=f"stalls, state of {of_bytes / 2**30:.2f} GiB",
            found=f"step {1000 * usual:.1f} ms; {listed or 'none'}",
            good=None,
            figures={"steps": steps, "plain": found["plain"]["steps"], "copy_s": copy_s},
        ),
        Row(
            what="checkpoints",
            found=", ".join(f"{b / 2**30:.2f} GiB in {s:.1f} s" for b, s in saved) or "none",
            good=bool(saved),
        ),
    ]
    peaks = [found[name]["peak_bytes"] for name in ("plain", "ours")]
    reserved = [found[name]["reserved_bytes"] for name in ("plain", "ours")]
    said = f"peak {peaks[0] / 2**30:.3f} and {peaks[1] / 2**30:.3f} GiB, reserved "
    said += f"{reserved[0] / 2**30:.3f} and {reserved[1] / 2**30:.3f} GiB"
    figures = {"peak_bytes": peaks, "reserved_bytes": reserved}
    good = peaks[1] - peaks[0] <= of_bytes // 20
    rows.append(
        Row(what="device memory, plain and with us", found=said, good=good, figures=figures)
    )
    return rows


def _kinds_of_memory(of_bytes: int) -> Row:
    """What the first and the second copy into host memory of each kind take."""
    parts = 26
    sources = [torch.ones(of_bytes // parts, dtype=torch.uint8, device="cuda")] * parts
    found = []
    # The slab first: torch keeps pinned memory, and gives it out again.
    for name, pinned, in_one in (
        ("one pinned slab", True, True),
        ("pinned by tensor", True, False),
        ("pageable", False, False),
    ):
        torch.cuda.synchronize()
        began = time.perf_counter()
        if in_one:
            slab = torch.empty(of_bytes, dtype=torch.uint8, pin_memory=pinned)
            targets = list(slab.split(of_bytes // parts))[:parts]
        else:
            targets = [torch.empty(len(s), dtype=torch.uint8, pin_memory=pinned) for s in sources]
        took = [time.perf_counter() - began]
        for _ in range(2):
            began = time.perf_counter()
            torch._foreach_copy_(targets, sources, non_blocking=True)
            torch.cuda.synchronize()
            took.append(time.perf_counter() - began)
        first, copied, again = (round(1000 * seconds) for seconds in took)
        found.append(f"{name} {first} + {copied}, then {again} ms")
    return Row(what="memory for a copy", found="; ".join(found), good=None)


def _one_copy(of_bytes: int) -> float:
    source = torch.ones(of_bytes, dtype=torch.uint8, device="cuda")
    target = torch.empty(of_bytes, dtype=torch.uint8, pin_memory=True)
    took = []
    for _ in range(5):
        torch.cuda.synchronize()
        began = time.perf_counter()
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        took.append(time.perf_counter() - began)
    del source, target
    torch.cuda.empty_cache()
    return statistics.median(took)


def _aside(of_bytes: int, copy_s: float) -> Row:
    """Our copy beside the training: what the device stands for it, and the host."""
    parts = 26
    sources = [torch.full((of_bytes // 4 // parts,), float(i), device="cuda") for i in range(parts)]
    targets = [torch.empty_like(s, device="cpu", pin_memory=True) for s in sources]
    host_s, device_s, right = [], [], True
    for turn in range(5):
        torch.cuda.synchronize()
        began = time.perf_counter()
        copying = copy_aside(targets, sources, {torch.cuda.current_device()})
        host_s.append(time.perf_counter() - began)
        torch._foreach_add_(sources, 1)  # what the training would do next
        device_s.append(copying.device_s())
        right &= all(bool((t == i + turn).all()) for i, t in enumerate(targets))
    host, device = statistics.median(host_s), statistics.median(device_s)
    said = f"host {1000 * host:.2f} ms, device {1000 * device:.1f} ms, "
    said += f"{device / copy_s:.2f} times one copy; {'right' if right else 'TORN'}"
    return Row(what="copies on a side stream", found=said, good=right and device <= 1.1 * copy_s)


def kills(place: Place) -> list[Row]:
    def one(kind: str) -> Row:
        folder = place.folder / "kill" / kind.replace(" ", "_")
        step = min(FAULT_AT, place.steps - 3)
        fault = f"faults=[{{kind: sigkill, step: {step}, moment: backward}}]"
        settings = (fault, "checkpoint.every_steps=10")
        alone = run(folder / "plain", place.words(kind), supervised=False)
        ours = run(folder / "ours", place.words(kind), supervised=True, settings=settings)
        if alone.code or ours.code:
            return Row(what=kind, found=_failure(alone if alone.code else ours), good=False)
        other, resumed = differences(alone.result(), ours.result()), ours.exactness()
        said = "bit for bit" if not other else f"DIFFERS: {', '.join(other[:3])}"
        reasons = [e["reason"] for e in ours.events("resumed") if e["exactness"] != "exact"]
        said += f"; resumed {', '.join(resumed) or 'from nothing'}{' '.join(['', *reasons])[:200]}"
        good = not other and any("exact" in word for word in resumed)
        return Row(what=kind, found=said, good=good, figures={"warnings": ours.warnings()})

    return place.each(one, place.kinds(KILLED))


def faults(place: Place) -> list[Row]:
    rows = place.each(
        lambda kind: _kept_out(place, kind), ["adamw fused", "adamw foreach", "adamw loop"]
    )

    def one(fault: str) -> Row:
        folder = place.folder / "faults" / fault
        words = place.words("fails once", "--fault", fault)
        settings = ("checkpoint.every_steps=10",)
        alone = run(folder / "plain", place.words("fails once"), supervised=False)
        ours = run(folder / "ours", words, supervised=True, settings=settings)
        if alone.code or ours.code:
            return Row(what=fault, found=_failure(alone if alone.code else ours), good=False)
        other = differences(alone.result(), ours.result())
        said = "; ".join(ours.ends()) or "NOTHING FAILED"
        said += f"; {', '.join(ours.exactness()) or 'from the start'}; "
        said += "bit for bit" if not other else f"DIFFERS: {', '.join(other[:3])}"
        return Row(what=fault, found=said, good=bool(ours.ends()) and not other)

    return rows + place.each(one, ["oom", "assert"])


def _kept_out(place: Place, kind: str) -> Row:
    folder = place.folder / "nan" / kind.replace(" ", "_")
    words = place.words(kind, "--fault", "nan")
    alone = run(folder / "plain", [*words, "--left-out"], supervised=False)
    ours = run(folder / "ours", words, supervised=True)
    if alone.code or ours.code:
        return Row(what=f"nan, {kind}", found=_failure(alone if alone.code else ours), good=False)
    other = differences(alone.result(), ours.result())
    steps = [event["step"] for event in ours.events("update_skipped")]
    said = "kept out bit for bit" if not other else f"DIFFERS: {', '.join(other[:3])}"
    said += f"; left out: {steps}; {', '.join(ours.treatments())}"
    return Row(what=f"nan, {kind}", found=said, good=not other and steps == [FAULT_AT])


def ranks(place: Place) -> list[Row]:
    devices = torch.cuda.device_count() if place.device == "cuda" else 0
    said = f"not run: {devices} device" if devices < 2 else "not built yet"
    ways = ["made anew"]
    if hasattr(torch.distributed, "_reconfigure"):
        ways.append("reconfigured")
    return [
        Row(what="NCCL: agreement, hang, killed rank", found=said, good=None),
        *(_revoked(place, way, devices) for way in ways),
    ]


def _revoked(place: Place, way: str, devices: int) -> Row:
    """A collective in which the other rank dies, once more: see `benchmarks.gpu.revoked`."""
    what = f"a collective that was revoked, {way}"
    if place.device == "cuda" and devices < 2:
        return Row(what=what, found=f"not run: {devices} device", good=None)
    line = [sys.executable, "-m", "benchmarks.gpu.revoked", "--device", place.device, "--way", way]
    done = subprocess.run(line, capture_output=True, text=True)
    last = (done.stdout.splitlines() or [""])[-1]
    found: dict[str, Any] = json.loads(last) if last.startswith("{") else {"same": False}
    told = ", ".join(f"{name} {value:.3g}" for name, value in found.items() if name != "same")
    return Row(what=what, found=told or done.stderr[-200:], good=found["same"], figures=found)


def hardware(place: Place) -> list[Row]:
    """What the driver tells an ordinary reader of a device; nothing is set."""
    try:
        import pynvml
    except ImportError:
        return [Row(what="NVML", found="not run: no nvidia-ml-py", good=None)]
    asked: dict[str, Callable[[Any], Any]] = {
        "serial number": pynvml.nvmlDeviceGetSerial,
        "temperature": lambda h: pynvml.nvmlDeviceGetTemperature(h, pynvml.NVML_TEMPERATURE_GPU),
        "throttle reasons": pynvml.nvmlDeviceGetCurrentClocksThrottleReasons,
        "ECC errors": lambda h: pynvml.nvmlDeviceGetTotalEccErrors(
            h, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_AGGREGATE_ECC
        ),
        "remapped rows": pynvml.nvmlDeviceGetRemappedRows,
        "PCIe replays": pynvml.nvmlDeviceGetPcieReplayCounter,
        "kinds of events": pynvml.nvmlDeviceGetSupportedEventTypes,
        "Xid events": _register_for_xid,
    }
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    except pynvml.NVMLError as error:
        return [Row(what="NVML", found=f"not run: {error}", good=None)]
    rows = []
    for name, ask in asked.items():
        try:
            rows.append(Row(what=name, found=_without_serial(name, ask(handle)), good=True))
        except (pynvml.NVMLError, AttributeError) as error:
            rows.append(Row(what=name, found=str(error), good=None))
    pynvml.nvmlShutdown()
    nvml = Nvml()
    for device in nvml.read():
        said = f"{device.name}: {device.faults() or 'sound'}, Xids heard: {nvml.hears_xids}"
        rows.append(Row(what="as a run reads it", found=said, good=True))
    return rows


def _register_for_xid(handle: Any) -> str:
    import pynvml

    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
    pynvml.nvmlEventSetFree(events)
    return "registered"


def _without_serial(name: str, value: Any) -> str:
    return "answered" if "serial" in name else str(value)


def _failure(ended: Ended) -> str:
    where = "with us" if ended.run_dir.exists() else "plain"
    lines = [line.strip() for line in ended.said.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or "error" in line]
    said = (errors or lines or ["nothing was said"])[-1]
    return f"FAILED {where} with {ended.code}: {said[:220]}"


POINTS: dict[str, Callable[[Place], Iterable[Row]]] = {
    "late_values": late_values,
    "captures": captures,
    "waits": waits,
    "healthy": healthy,
    "overhead": overhead,
    "snapshots": snapshots,
    "half_precision": half_precision,
    "kills": kills,
    "faults": faults,
    "memory": lambda place: [Row(what="device memory", found="see snapshots", good=None)],
    "ranks": ranks,
    "hardware": hardware,
}
"""In the order in which they decide: what fails early makes what follows worthless."""
