"""The script itself changes weights, or what trains them, in the middle of the training."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.healthy.base import Update, clusters, fit
from benchmarks.healthy.margins import mlp


def hard_targets(steps: int) -> Iterator[Update]:
    """Q-learning without an end of the corridor: each copy of the target raises the loss."""
    model, target = mlp(10, 32, 2), mlp(10, 32, 2)
    places = torch.eye(10)

    def loss_of(step: int) -> torch.Tensor:
        if step % 60 == 0:
            target.load_state_dict(model.state_dict())
        place, action = torch.randint(0, 10, (32,)), torch.randint(0, 2, (32,))
        after = (place + 2 * action - 1).clamp(0, 9)
        with torch.no_grad():
            aim = 10.0 * (after == 9) + 0.95 * target(places[after]).max(1).values
        return F.mse_loss(model(places[place]).gather(1, action[:, None])[:, 0], aim)

    return fit(model, loss_of, steps, lr=5e-3)


def opponents(steps: int) -> Iterator[Update]:
    """Self-play: the opponent becomes a copy of the player again and again."""
    player, opponent = mlp(6, 48, 4), mlp(6, 48, 4)
    gain = torch.randn(4, 4)
    gain = gain - gain.T

    def loss_of(step: int) -> torch.Tensor:
        if step % 75 == 0:
            opponent.load_state_dict(player.state_dict())
        x = torch.randn(32, 6)
        answer = F.softmax(opponent(x).detach(), 1)
        return -5 * (F.softmax(3 * player(x), 1) @ gain * answer).sum(1).mean()

    return fit(player, loss_of, steps, lr=3e-3)


def growing(steps: int) -> Iterator[Update]:
    """A picture of 4, 8, 16 and 32 points: each size has a new layer, in a group of its own."""
    body = mlp(6, 32)
    heads = [nn.Linear(32, 4 * 2**size) for size in range(4)]
    optimizer = torch.optim.Adam([*body.parameters(), *heads[0].parameters()], 3e-3)
    pattern = torch.randn(6, 32)
    for step in range(steps):
        size = min(3, 4 * step // steps)
        if size > len(optimizer.param_groups) - 1:
            optimizer.add_param_group({"params": [*heads[size].parameters()], "lr": 3e-3})
        x = torch.randn(32, 6)
        aim = (x @ pattern)[:, :: 8 // 2**size]
        loss = (heads[size](F.relu(body(x))) - aim).square().sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        yield Update(optimizer, loss.detach())
        optimizer.step()


def pruning(steps: int) -> Iterator[Update]:
    """Lottery tickets: half of the weights go, the others are put back to their first values."""
    model, draw = mlp(16, 64, 6), clusters(6, 16, noise=0.4)
    first = [weight.detach().clone() for weight in model.parameters()]
    masks = [torch.ones_like(weight) for weight in model.parameters()]
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for step in range(steps):
        if step and step % 150 == 0:
            with torch.no_grad():
                for weight, start, mask in zip(model.parameters(), first, masks, strict=True):
                    if weight.dim() > 1:
                        mask *= weight.abs() > weight[mask > 0].abs().median()
                    weight.copy_(start * mask)
            optimizer.state.clear()
        x, y = draw()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        for weight, mask in zip(model.parameters(), masks, strict=True):
            if weight.grad is not None:
                weight.grad *= mask
        yield Update(optimizer, loss.detach())
        optimizer.step()


def new_last_layer(steps: int) -> Iterator[Update]:
    """The last layer begins anew every 100 steps, as against a loss of plasticity."""
    model, draw = mlp(16, 64, 64, 8), clusters(8, 16, apart=1.5, noise=0.3)
    last = nn.Linear(64, 8)
    model[-1] = last
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)

    def loss_of(step: int) -> torch.Tensor:
        if step and step % 100 == 0:
            last.reset_parameters()
            for weight in last.parameters():
                optimizer.state.pop(weight, None)
        x, y = draw()
        return F.cross_entropy(model(x), y)

    return fit(model, loss_of, steps, optimizer=optimizer)


def recycled_units(steps: int) -> Iterator[Update]:
    """Units that hardly answer get new weights every 75 steps."""
    body, head = nn.Linear(16, 64), nn.Linear(64, 8)
    draw = clusters(8, 16, noise=0.3)
    model = nn.ModuleList([body, head])

    def loss_of(step: int) -> torch.Tensor:
        x, y = draw()
        if step % 75 == 74:
            with torch.no_grad():
                answer = F.relu(body(x)).mean(0)
                idle = answer < 0.3 * answer.mean()
                body.weight[idle] = 0.2 * torch.randn(int(idle.sum()), 16)
                head.weight[:, idle] = 0.0
        return F.cross_entropy(head(F.relu(body(x))), y)

    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    return fit(model, loss_of, steps, optimizer=optimizer)


def generations(steps: int) -> Iterator[Update]:
    """Self-distillation: the student becomes the teacher, and a new one begins in its place."""
    model, teacher, draw = mlp(16, 48, 6), mlp(16, 48, 6), clusters(6, 16, noise=0.4)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for step in range(steps):
        if step and step % 150 == 0:
            teacher = copy.deepcopy(model)
            model.load_state_dict(mlp(16, 48, 6).state_dict())
            optimizer = torch.optim.Adam(model.parameters(), 5e-3)
        x, y = draw()
        told = model(x)
        loss = F.cross_entropy(told, y)
        if step >= 150:
            aim = F.softmax(teacher(x).detach() / 2, 1)
            apart = F.kl_div(F.log_softmax(told / 2, 1), aim, reduction="batchmean")
            loss = 0.5 * loss + 2 * apart
        optimizer.zero_grad()
        loss.backward()
        yield Update(optimizer, loss.detach())
        optimizer.step()


def averaged(steps: int) -> Iterator[Update]:
    """Averaged weights are swapped in for a look, and at 300 the training goes on from them."""
    model, draw = mlp(16, 48, 6), clusters(6, 16, noise=1.0)
    mean = copy.deepcopy(model)

    def swap() -> None:
        for own, other in zip(model.parameters(), mean.parameters(), strict=True):
            own.data, other.data = other.data, own.data

    def loss_of(step: int) -> torch.Tensor:
        with torch.no_grad():
            for own, other in zip(model.parameters(), mean.parameters(), strict=True):
                other.lerp_(own, 0.02)
            if step and step % 75 == 0:
                swap()
                model(draw()[0])
                if step != 300:
                    swap()
        x, y = draw()
        return F.cross_entropy(model(x), y)

    optimizer = torch.optim.SGD(model.parameters(), 0.2, momentum=0.9)
    return fit(model, loss_of, steps, optimizer=optimizer)


def lookahead(steps: int) -> Iterator[Update]:
    """Every six steps the weights go half the way back to slow ones."""
    model, draw = mlp(16, 48, 6), clusters(6, 16, noise=0.7)
    slow = [weight.detach().clone() for weight in model.parameters()]

    def loss_of(step: int) -> torch.Tensor:
        if step and step % 6 == 0:
            for old, weight in zip(slow, model.parameters(), strict=True):
                old.lerp_(weight.data, 0.5)
                weight.data.copy_(old)
        x, y = draw()
        return F.cross_entropy(model(x), y)

    optimizer = torch.optim.SGD(model.parameters(), 0.3, momentum=0.9)
    return fit(model, loss_of, steps, optimizer=optimizer)


def sharpness(steps: int) -> Iterator[Update]:
    """Sharpness-aware: the weights go uphill for a second backward, and are put back."""
    model, draw = mlp(16, 48, 6), clusters(6, 16)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range(steps):
        x, y = draw()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        pairs = [(p, p.grad.clone()) for p in model.parameters() if p.grad is not None]
        norm = torch.stack([grad.norm() for _, grad in pairs]).norm()
        for weight, grad in pairs:
            weight.data.add_(0.2 * grad / norm)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        for weight, grad in pairs:
            weight.data.sub_(0.2 * grad / norm)
        yield Update(optimizer, loss.detach())
        optimizer.step()


def merged_adapters(steps: int) -> Iterator[Update]:
    """ReLoRA: the adapters are added to the frozen weight, and begin anew."""
    base, aim = 0.2 * torch.randn(32, 32), 0.3 * torch.randn(32, 32)
    model = nn.ParameterDict({"down": 0.1 * torch.randn(4, 32), "up": torch.zeros(32, 4)})
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)

    def loss_of(step: int) -> torch.Tensor:
        if step and step % 100 == 0:
            with torch.no_grad():
                base.add_(model["up"] @ model["down"])
                nn.init.normal_(model["down"], std=0.1)
                model["up"].zero_()
            optimizer.state.clear()
        x = torch.randn(32, 32)
        return F.mse_loss(x @ base.T + x @ model["down"].T @ model["up"].T, x @ aim)

    return fit(model, loss_of, steps, optimizer=optimizer)


def unfrozen(steps: int) -> Iterator[Update]:
    """The head alone, then all of it, with a new optimizer and ten times the rate for the body."""
    body, head = mlp(16, 64, 32), nn.Linear(32, 6)
    draw = clusters(6, 16)
    body.requires_grad_(False)
    optimizer = torch.optim.Adam(head.parameters(), 1e-3)
    for step in range(steps):
        if step == steps // 3:
            body.requires_grad_(True)
            quick = {"params": [*body.parameters()], "lr": 1e-2}
            optimizer = torch.optim.Adam([{"params": [*head.parameters()]}, quick], 1e-3)
        x, y = draw()
        loss = F.cross_entropy(head(F.relu(body(x))), y)
        optimizer.zero_grad()
        loss.backward()
        yield Update(optimizer, loss.detach())
        optimizer.step()


def rate_search(steps: int) -> Iterator[Update]:
    """A rate that grows until the loss is ruined; then the weights are put back, and it trains."""
    model, draw = mlp(16, 48, 6), clusters(6, 16, noise=0.6)
    first = copy.deepcopy(model.state_dict())
    search = steps // 3

    def loss_of(step: int) -> torch.Tensor:
        if step == search:
            model.load_state_dict(first)
            optimizer.state.clear()
        x, y = draw()
        return F.cross_entropy(model(x), y)

    def rate(step: int) -> float:
        return float(10 ** (6.0 * step / search)) if step < search else 5000.0

    optimizer = torch.optim.SGD(model.parameters(), 1e-5, momentum=0.9)
    return fit(model, loss_of, steps, optimizer=optimizer, rate=rate)


def folds(steps: int) -> Iterator[Update]:
    """Cross-validation in one process: three models in turn, the last at a rate of 0.1."""
    points = torch.randn(300, 16)
    for fold, lr in enumerate((1e-3, 1e-2, 1e-1)):
        own = torch.arange(300)[torch.arange(300) % 3 != fold]
        model = mlp(16, 48, 6)
        optimizer = torch.optim.Adam(model.parameters(), lr)
        for _ in range(steps // 3):
            x = points[own[torch.randint(0, len(own), (32,))]]
            loss = F.cross_entropy(model(x), x[:, :6].argmax(1))
            optimizer.zero_grad()
            loss.backward()
            yield Update(optimizer, loss.detach())
            optimizer.step()


TRAININGS = {
    "hard_targets": hard_targets,
    "opponents": opponents,
    "growing": growing,
    "pruning": pruning,
    "new_last_layer": new_last_layer,
    "recycled_units": recycled_units,
    "generations": generations,
    "averaged": averaged,
    "lookahead": lookahead,
    "sharpness": sharpness,
    "merged_adapters": merged_adapters,
    "unfrozen": unfrozen,
    "rate_search": rate_search,
    "folds": folds,
}
