"""Small ordinary trainings of many kinds, as scripts of users: nothing here knows of supervision.

    python trainings.py KIND --out FILE [--device cuda] [--steps 100]

Writes weights, optimizer, losses and the next random numbers, for a comparison bit by bit.
`--fault` lets something go wrong at step FAULT_AT, `--left-out` leaves that batch out instead.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

FAULT_AT = 70
CLASSES = 10
options = argparse.Namespace(device="cpu", steps=100, fault="", left_out=False, out="")
result: dict[str, Any] = {}


def mlp(*, dropout: float = 0.1, width: int = 64) -> nn.Module:
    first = [nn.Linear(32, width), nn.GELU(), nn.Dropout(dropout)]
    last = [nn.Linear(width, width), nn.GELU(), nn.Dropout(dropout), nn.Linear(width, CLASSES)]
    return nn.Sequential(*first, *last).to(options.device)


class Transformer(nn.Module):
    def __init__(self, *, width: int = 64, layers: int = 2, checkpointed: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(128, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True)
            for _ in range(layers)
        )
        self.out = nn.Linear(width, 128)
        self.checkpointed = checkpointed

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens)
        for layer in self.layers:
            if self.checkpointed:
                hidden = checkpoint(layer, hidden, use_reentrant=False)
            else:
                hidden = layer(hidden)
        return self.out(hidden)


def batches() -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    for step in range(options.steps):
        x = torch.randn(64, 32, device=options.device)
        if step == FAULT_AT and options.fault == "nan":
            x[0, 0] = math.nan
        yield step, x, x[:, :CLASSES].nan_to_num().argmax(1)


def sequences() -> Iterator[torch.Tensor]:
    for _ in range(options.steps):
        yield torch.randint(0, 128, (16, 33), device=options.device)


def next_token_loss(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    logits = model(tokens[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def finished(models: list[nn.Module], optimizers: list[Any], losses: list[Any]) -> None:
    result["models"] = [model.state_dict() for model in models]
    result["optimizers"] = [one.state_dict() for one in optimizers]
    result["losses"] = [float(loss) for loss in losses]


def sick(step: int) -> bool:
    return options.left_out and step == FAULT_AT


def adamw(**given: Any) -> None:
    """Dropout, the rate warmed up, the norm clipped."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, **given)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=20)
    losses = []
    for step, x, y in batches():
        loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        if not sick(step):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        schedule.step()
        losses.append(loss.detach())
    finished([model], [optimizer], losses)


def transformer(**given: Any) -> None:
    model = Transformer(**given).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    losses = []
    for tokens in sequences():
        loss = next_token_loss(model, tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    finished([model], [optimizer], losses)


def scaled(*, fused: bool) -> None:
    """Float16 under autocast; the scale begins so high that the first updates are left out."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=fused, foreach=not fused)
    scaler = torch.amp.GradScaler(options.device, init_scale=2.0**24, growth_interval=20)
    losses = []
    for _, x, y in batches():
        kind = torch.float16 if options.device == "cuda" else torch.bfloat16
        with torch.autocast(options.device, kind):
            loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if not fused:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    finished([model], [optimizer], losses)
    result["scaler"] = scaler.state_dict()


def bf16() -> None:
    model = Transformer().to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    losses = []
    for tokens in sequences():
        with torch.autocast(options.device, torch.bfloat16):
            loss = next_token_loss(model, tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    finished([model], [optimizer], losses)


def pure_half() -> None:
    """Weights in float16, whose gradients are of a norm that float16 cannot hold."""
    model = mlp(dropout=0.0).half()
    optimizer = torch.optim.SGD(model.parameters(), 1e-8, momentum=0.9)
    losses = []
    for _, x, y in batches():
        loss = functional.cross_entropy(model(x.half()).float(), y)
        optimizer.zero_grad()
        (loss * 2e5).backward()
        optimizer.step()
        losses.append(loss.detach())
    finished([model], [optimizer], losses)


def accumulated() -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    losses = []
    for _, x, y in batches():
        optimizer.zero_grad()
        for part, wanted in zip(x.chunk(4), y.chunk(4), strict=True):
            loss = functional.cross_entropy(model(part), wanted) / 4
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
    finished([model], [optimizer], losses)


def images() -> None:
    """A convolutional network with BatchNorm; its loader has workers, pinned memory, a look at a
    validation set at each end of an epoch."""
    data = TensorDataset(torch.randn(640, 3, 16, 16), torch.randint(0, CLASSES, (640,)))
    loader = DataLoader(data, 64, shuffle=True, num_workers=2, pin_memory=options.device == "cuda")
    conv = [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2)]
    head = [nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 36, CLASSES)]
    model = nn.Sequential(*conv, *head).to(options.device)
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9, weight_decay=1e-4)
    losses: list[Any] = []
    while len(losses) < options.steps:
        for x, y in loader:
            x = x.to(options.device, non_blocking=True)
            loss = functional.cross_entropy(model(x), y.to(options.device, non_blocking=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        model.eval()
        with torch.no_grad():
            right = (model(data.tensors[0][:64].to(options.device)).argmax(1).cpu()).tolist()
        result["right"] = right
        model.train()
    finished([model], [optimizer], losses)


def closure() -> None:
    model = mlp(dropout=0.0, width=16)
    optimizer = torch.optim.LBFGS(model.parameters(), 0.1, max_iter=4)
    losses = []
    for _, x, y in batches():

        def evaluate(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        losses.append(optimizer.step(evaluate).detach())
    finished([model], [optimizer], losses)


def gan() -> None:
    maker = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32)).to(options.device)
    critic = nn.Sequential(nn.Linear(32, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    critic = critic.to(options.device)
    of_critic = torch.optim.Adam(critic.parameters(), 1e-3, betas=(0.5, 0.9))
    of_maker = torch.optim.Adam(maker.parameters(), 1e-3, betas=(0.5, 0.9))
    losses = []
    for _, x, _ in batches():
        made = maker(torch.randn(64, 8, device=options.device))
        loss = (
            functional.softplus(-critic(x)).mean()
            + functional.softplus(critic(made.detach())).mean()
        )
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
        fooled = functional.softplus(-critic(made)).mean()
        of_maker.zero_grad()
        fooled.backward()
        of_maker.step()
        losses += [loss.detach(), fooled.detach()]
    finished([maker, critic], [of_critic, of_maker], losses)


def compiled(**given: Any) -> None:
    model = Transformer().to(options.device)
    run = torch.compile(model, **given)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    losses = []
    for tokens in sequences():
        loss = next_token_loss(run, tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    finished([model], [optimizer], losses)


def graphed_callable() -> None:
    """Forward and backward are CUDA graphs; loss and update are not."""
    model = mlp(dropout=0.0)
    sample = torch.randn(64, 32, device=options.device)
    run = torch.cuda.make_graphed_callables(model, (sample,))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    losses = []
    for _, x, y in batches():
        loss = functional.cross_entropy(run(x), y)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    finished([model], [optimizer], losses)


def graphed_step() -> None:
    """A whole step is one CUDA graph, after three ordinary ones."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, capturable=True)
    x = torch.randn(64, 32, device=options.device)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(model(x), x[:, :CLASSES].argmax(1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    losses = []
    for _ in range(options.steps):
        x.copy_(torch.randn(64, 32, device=options.device))
        graph.replay()
        losses.append(loss.detach().clone())
    finished([model], [optimizer], losses)


def fails_once() -> None:
    """Out of memory, or an index out of range on the device, in the first attempt alone."""
    model = mlp()
    embed = nn.Embedding(8, 32).to(options.device)
    parameters = [*model.parameters(), *embed.parameters()]
    optimizer = torch.optim.AdamW(parameters, 1e-3)
    has_failed = Path(options.out + ".failed")
    losses = []
    for step, x, y in batches():
        index = torch.zeros(64, dtype=torch.long, device=options.device)
        logits = model(x)
        if step == FAULT_AT and options.fault and not has_failed.exists():
            # By another process: what the script itself writes is taken back for a resume.
            subprocess.run(["touch", str(has_failed)], check=True)
            if options.fault == "oom":
                torch.empty(1 << 42, dtype=torch.uint8, device=options.device)
            index += 1000
        loss = functional.cross_entropy(logits + embed(index).mean(1, keepdim=True), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    finished([model, embed], [optimizer], losses)


KINDS: dict[str, Callable[[], None]] = {
    "adamw fused": lambda: adamw(fused=True),
    "adamw foreach": lambda: adamw(foreach=True),
    "adamw loop": lambda: adamw(foreach=False),
    "transformer": transformer,
    "recomputed": lambda: transformer(checkpointed=True),
    "fp16 scaler": lambda: scaled(fused=False),
    "fp16 scaler fused": lambda: scaled(fused=True),
    "bf16": bf16,
    "pure half": pure_half,
    "accumulated": accumulated,
    "images": images,
    "closure": closure,
    "gan": gan,
    "compiled": compiled,
    "reduce-overhead": lambda: compiled(mode="reduce-overhead"),
    "graphed callable": graphed_callable,
    "graphed step": graphed_step,
    "fails once": fails_once,
}
NEEDS_CUDA = ("pure half", "compiled", "reduce-overhead", "graphed callable", "graphed step")
"""Graphs; and what a CPU does slowly, or only with a compiler."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--out", required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--fault", default="")
    parser.add_argument("--left-out", action="store_true")
    parser.parse_args(namespace=options)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(7)
    KINDS[options.kind]()
    result["random"] = torch.rand(4), torch.rand(4, device=options.device)
    if options.device == "cuda":
        result["peak_bytes"] = torch.cuda.max_memory_allocated()
    torch.save(result, options.out)


if __name__ == "__main__":
    main()
