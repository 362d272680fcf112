"""The data changes: tasks, classes and lengths in turn, harder samples, returns that grow."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.healthy.base import Update, clusters, fit
from benchmarks.healthy.margins import mlp


def permuted_tasks(steps: int) -> Iterator[Update]:
    """A new task every 110 steps: the same points, in other columns and with other labels."""
    model, draw = mlp(20, 64, 64, 10), clusters(10, 20, apart=1.5, noise=0.6, batch=64)
    columns, labels = torch.randperm(20), torch.randperm(10)

    def loss_of(step: int) -> torch.Tensor:
        nonlocal columns, labels
        if step and step % 110 == 0:
            columns, labels = torch.randperm(20), torch.randperm(10)
        x, y = draw()
        return F.cross_entropy(model(x[:, columns]), labels[y])

    return fit(model, loss_of, steps, lr=5e-3)


def relabelled_tasks(steps: int) -> Iterator[Update]:
    """The same points mean something else from step 150 on, and again from 300 on."""
    model, draw = mlp(20, 64, 10), clusters(10, 20, apart=1.5, batch=64)
    labels = torch.randperm(10)

    def loss_of(step: int) -> torch.Tensor:
        nonlocal labels
        if step and step % 150 == 0:
            labels = torch.randperm(10)
        x, y = draw()
        return F.cross_entropy(model(x), labels[y])

    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    return fit(model, loss_of, steps, optimizer=optimizer)


def classes_in_turn(steps: int) -> Iterator[Update]:
    """Two new classes in each fifth of the training, and those alone."""
    model, centres = mlp(20, 64, 10), 1.5 * torch.randn(10, 20)

    def loss_of(step: int) -> torch.Tensor:
        y = 2 * (5 * step // steps) + torch.randint(0, 2, (32,))
        return F.cross_entropy(model(centres[y] + 0.5 * torch.randn(32, 20)), y)

    return fit(model, loss_of, steps, lr=2e-3)


def longer_sequences(steps: int) -> Iterator[Update]:
    """A word is repeated, twice as long once it is learned; the loss is summed over letters."""
    net, head = nn.LSTM(5, 48, batch_first=True), nn.Linear(48, 5)
    length, usual = 1, 9.0

    def loss_of(step: int) -> torch.Tensor:
        nonlocal length, usual
        word = torch.randint(0, 4, (32, length))
        x = torch.zeros(32, 2 * length, 5)
        x[:, :length] = F.one_hot(word, 5)
        x[:, length:, 4] = 1.0
        told = head(net(x)[0][:, length:]).flatten(0, 1)
        loss = F.cross_entropy(told, word.flatten(), reduction="sum") / 32
        usual = 0.9 * usual + 0.1 * float(loss.detach()) / length
        if usual < 0.1:
            length, usual = min(8, 2 * length), 2.0
        return loss

    return fit(nn.ModuleList([net, head]), loss_of, steps, lr=1e-2, clip=1.0)


def hard_samples(steps: int) -> Iterator[Update]:
    """Active learning: every 75 steps the 16 samples join whose loss is highest."""
    model = mlp(16, 64, 6)
    pool, labels = clusters(6, 16, apart=0.6, noise=0.7, batch=1000)()
    own = torch.arange(16)

    def loss_of(step: int) -> torch.Tensor:
        nonlocal own
        if step and step % 75 == 0:
            with torch.no_grad():
                losses = F.cross_entropy(model(pool), labels, reduction="none")
            losses[own] = -1.0
            own = torch.cat([own, losses.topk(16).indices])
        rows = own[torch.randint(0, len(own), (16,))]
        return F.cross_entropy(model(pool[rows]), labels[rows])

    return fit(model, loss_of, steps, lr=5e-3)


def wrong_labels(steps: int) -> Iterator[Update]:
    """A study of robustness: in the second third four labels in ten are drawn at random."""
    model, draw = mlp(16, 48, 6), clusters(6, 16, apart=1.5, noise=0.4)

    def loss_of(step: int) -> torch.Tensor:
        x, y = draw()
        if 3 * step // steps == 1:
            y = torch.where(torch.rand(32) < 0.4, torch.randint(0, 6, (32,)), y)
        return F.cross_entropy(model(x), y)

    return fit(model, loss_of, steps, lr=5e-3)


def attacked(steps: int) -> Iterator[Update]:
    """Adversarial training: clean first, then against attacks that grow."""
    model, draw = mlp(16, 64, 4), clusters(4, 16, noise=0.3, batch=64)

    def loss_of(step: int) -> torch.Tensor:
        x, y = draw()
        reach = 0.2 + 0.4 * (step - 150) / steps
        moved = torch.zeros_like(x)
        for _ in range(3 if step >= 150 else 0):
            moved.requires_grad_()
            uphill = torch.autograd.grad(F.cross_entropy(model(x + moved), y), moved)[0]
            moved = (moved + reach / 2 * uphill.sign()).clamp(-reach, reach).detach()
        return F.cross_entropy(model(x + moved), y)

    return fit(model, loss_of, steps, lr=2e-3)


def lengths(steps: int) -> Iterator[Update]:
    """A summed loss of one to eight sequences of 4 to 60 letters, clipped at 1."""
    letters, net, head = nn.Embedding(20, 24), nn.GRU(24, 32, batch_first=True), nn.Linear(32, 20)
    follows = torch.softmax(2 * torch.randn(20, 20), 1)

    def loss_of(step: int) -> torch.Tensor:
        text = [torch.randint(0, 20, (1 + 7 * int(torch.randint(0, 2, ())),))]
        for _ in range(int(4 * 15 ** float(torch.rand(())))):
            text.append(torch.multinomial(follows[text[-1]], 1)[:, 0])
        x = torch.stack(text, 1)
        told = head(net(letters(x[:, :-1]))[0]).flatten(0, 1)
        return F.cross_entropy(told, x[:, 1:].flatten(), reduction="sum")

    return fit(nn.ModuleList([letters, net, head]), loss_of, steps, lr=2e-3, clip=1.0)


def growing_queue(steps: int) -> Iterator[Update]:
    """MoCo: against a queue of keys that begins with one and grows to 4096."""
    model, slow = mlp(16, 64, 16), mlp(16, 64, 16)
    slow.load_state_dict(model.state_dict())
    queue = F.normalize(torch.randn(1, 16), dim=1)

    def loss_of(step: int) -> torch.Tensor:
        nonlocal queue
        x = torch.randn(32, 16)
        with torch.no_grad():
            for old, weight in zip(slow.parameters(), model.parameters(), strict=True):
                old.lerp_(weight, 0.01)
            keys = F.normalize(slow(x + 0.2 * torch.randn(32, 16)), dim=1)
        query = F.normalize(model(x + 0.2 * torch.randn(32, 16)), dim=1)
        odds = torch.cat([(query * keys).sum(1, keepdim=True), query @ queue.T], 1) / 0.07
        queue = torch.cat([keys, queue])[:4096]
        return F.cross_entropy(odds, torch.zeros(32, dtype=torch.long))

    optimizer = torch.optim.SGD(model.parameters(), 0.06, momentum=0.9)
    return fit(model, loss_of, steps, optimizer=optimizer)


def growing_returns(steps: int) -> Iterator[Update]:
    """PPO, ten updates a rollout: the returns of its environment grow, and so does the loss."""
    policy, value = mlp(6, 32, 5), mlp(6, 32, 1)
    worth = torch.randn(6, 5)
    x, action, before, returns = torch.zeros(128, 6), *torch.zeros(3, 128)

    def loss_of(step: int) -> torch.Tensor:
        nonlocal x, action, before, returns
        if step % 10 == 0:
            x = torch.randn(128, 6)
            with torch.no_grad():
                odds = F.log_softmax(policy(x), 1)
            action = torch.multinomial(odds.exp(), 1)
            before = odds.gather(1, action)[:, 0]
            returns = 10 * (1 + step / 45) * (x @ worth).gather(1, action)[:, 0]
        rows = torch.randint(0, 128, (32,))
        guess, odds = value(x[rows])[:, 0], F.log_softmax(policy(x[rows]), 1)
        gain = returns[rows] - guess.detach()
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        ratio = (odds.gather(1, action[rows])[:, 0] - before[rows]).exp()
        kept = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        entropy = -(odds.exp() * odds).sum(1).mean()
        return -kept + 0.5 * F.mse_loss(guess, returns[rows]) - 0.01 * entropy

    return fit(nn.ModuleList([policy, value]), loss_of, steps, lr=3e-3, clip=0.5)


def survival_times(steps: int) -> Iterator[Update]:
    """Cox's likelihood, summed over the events in batches of 4 to 256."""
    model, risk = mlp(8, 32, 1), torch.randn(8)

    def loss_of(step: int) -> torch.Tensor:
        count = 4 ** int(torch.randint(1, 5, ()))
        x = torch.randn(count, 8)
        times = -torch.rand(count).log() / (x @ risk).exp()
        order = times.argsort(descending=True)
        told, ended = model(x)[order, 0], (torch.rand(count) < 0.3).float()
        return -((told - torch.logcumsumexp(told, 0)) * ended).sum()

    return fit(model, loss_of, steps, lr=2e-3)


def heavy_targets(steps: int) -> Iterator[Update]:
    """Targets with a heavy tail, one at a time: squared errors over many decades."""
    model, slope = mlp(6, 48, 1), torch.randn(6)

    def loss_of(step: int) -> torch.Tensor:
        x = torch.randn(1, 6)
        return F.mse_loss(model(x)[:, 0], (x @ slope).exp())

    return fit(model, loss_of, steps, lr=1e-3)


TRAININGS = {
    "permuted_tasks": permuted_tasks,
    "relabelled_tasks": relabelled_tasks,
    "classes_in_turn": classes_in_turn,
    "longer_sequences": longer_sequences,
    "hard_samples": hard_samples,
    "wrong_labels": wrong_labels,
    "attacked": attacked,
    "lengths": lengths,
    "growing_queue": growing_queue,
    "growing_returns": growing_returns,
    "survival_times": survival_times,
    "heavy_targets": heavy_targets,
}
