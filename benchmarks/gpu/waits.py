"""A training that reads nothing itself and counts how often the host waits for its device.

    python waits.py KIND --out FILE.json

Steps 130 to 169 by torch's profiler, which knows every wait; steps 170 to 269 by
`set_sync_debug_mode`, which tells where each was asked for.
"""

from __future__ import annotations

import argparse
import collections
import json
import traceback
import warnings
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

PROFILED, WATCHED, END = range(130, 170), range(170, 270), 270
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
KINDS = ("fused", "foreach", "scaler", "scaler fused", "accumulated", "followers", "zeroed")


class Training:
    """One step of each kind at a call."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        sizes = [nn.Linear(256, 256) for _ in range(12)]
        self.model = nn.Sequential(*sizes, nn.Linear(256, 10)).cuda()
        self.second = nn.Linear(10, 10).cuda()
        fused = {"fused": True} if "fused" in kind or kind == "accumulated" else {"foreach": True}
        self.optimizers = [torch.optim.AdamW(self.model.parameters(), 1e-4, **fused)]
        if kind == "followers":
            self.optimizers.append(torch.optim.AdamW(self.second.parameters(), 1e-4, **fused))
        self.scaler = torch.amp.GradScaler("cuda") if "scaler" in kind else None

    def step(self) -> None:
        x = torch.randn(64, 256, device="cuda")
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=self.kind != "zeroed")
        for _ in range(4 if self.kind == "accumulated" else 1):
            with torch.autocast("cuda", torch.float16, enabled=self.scaler is not None):
                out = self.model(x)
                out = self.second(out) if self.kind == "followers" else out
                loss = functional.cross_entropy(out, x[:, :10].argmax(1))
            (self.scaler.scale(loss) if self.scaler else loss).backward()
        for optimizer in self.optimizers:
            if self.scaler:
                self.scaler.step(optimizer)
            else:
                optimizer.step()
        if self.scaler:
            self.scaler.update()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    torch.manual_seed(0)
    training = Training(options.kind)
    for _ in range(PROFILED.start):
        training.step()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        for _ in PROFILED:
            training.step()
    counts = {event.key: event.count for event in found.key_averages() if event.key in WAITS}
    sites: collections.Counter[str] = collections.Counter()
    by_step: list[int] = []
    now = [0]

    def show(message: Any, *_: Any) -> None:
        if "synchronizing CUDA" in str(message):
            now[0] += 1
            stack = traceback.extract_stack()[:-1]
            ours = [f for f in stack if "/supervisor/" in f.filename]
            frame = (ours or stack)[-1]
            sites[f"{frame.filename.split('/supervisor/')[-1]}:{frame.name}"] += 1

    warnings.simplefilter("always")
    warnings.showwarning = show
    torch.cuda.set_sync_debug_mode("warn")
    for _ in WATCHED:
        now[0] = 0
        training.step()
        by_step.append(now[0])
    torch.cuda.set_sync_debug_mode("default")
    with open(options.out, "w") as file:
        json.dump(
            {
                "profiled": {key: count / len(PROFILED) for key, count in counts.items()},
                "typical": sorted(by_step)[len(by_step) // 2],
                "mean": sum(by_step) / len(by_step),
                "largest": max(by_step),
                "sites": {key: count / len(by_step) for key, count in sites.most_common(20)},
            },
            file,
        )


if __name__ == "__main__":
    main()
