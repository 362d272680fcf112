"""Losses that go below zero, and those that several players want different things of."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.healthy.base import Update, fit
from benchmarks.healthy.margins import mlp


def gaussian_vae(steps: int) -> Iterator[Update]:
    """The negative ELBO with a learned variance: above zero first, below it soon."""
    mix = torch.randn(3, 12)
    encoder, decoder = mlp(12, 32, 4), mlp(2, 32, 24)
    model = nn.ModuleList([encoder, decoder])

    def loss_of(step: int) -> torch.Tensor:
        x = torch.tanh(torch.randn(32, 3) @ mix) + 0.05 * torch.randn(32, 12)
        mean, spread = encoder(x).chunk(2, 1)
        drawn = mean + (0.5 * spread).exp() * torch.randn_like(mean)
        guess, noise = decoder(drawn).chunk(2, 1)
        noise = noise.clamp(-6, 4)
        told = 0.5 * (noise + (x - guess).square() / noise.exp()).sum(1).mean()
        kl = 0.5 * (mean**2 + spread.exp() - 1 - spread).sum(1).mean()
        return told + kl

    return fit(model, loss_of, steps, lr=2e-3, clip=20.0)


def flow(steps: int) -> Iterator[Update]:
    """A normalising flow: two affine couplings, a negative log-likelihood that falls below zero."""
    scales = nn.ModuleList([mlp(2, 32, 4, act=nn.Tanh) for _ in range(4)])

    def loss_of(step: int) -> torch.Tensor:
        angle = 2 * math.pi * torch.rand(64)
        x = torch.stack([angle.cos(), angle.sin(), 0.1 * angle.cos(), 0.1 * angle.sin()], 1)
        x = x + 0.03 * torch.randn(64, 4)
        total = torch.zeros(64)
        for net in scales:
            one, two = x.chunk(2, 1)
            shift, log_scale = net(one).chunk(2, 1)
            log_scale = torch.tanh(log_scale)
            x = torch.cat([two * log_scale.exp() + shift, one], 1)
            total = total + log_scale.sum(1)
        return (0.5 * x.square().sum(1) - total).mean()

    return fit(scales, loss_of, steps, lr=2e-3)


def actor_critic(steps: int) -> Iterator[Update]:
    """One loss of policy, value and entropy: of either sign, and hardly falling."""
    model = nn.ModuleDict({"body": mlp(4, 32, 32), "pi": nn.Linear(32, 5), "v": nn.Linear(32, 1)})

    def loss_of(step: int) -> torch.Tensor:
        x = torch.randn(16, 4)
        hidden = F.relu(model["body"](x))
        odds, value = model["pi"](hidden).log_softmax(1), model["v"](hidden)[:, 0]
        action = torch.multinomial(odds.detach().exp(), 1)
        reward = (action[:, 0] == (x[:, 0] > 0).long()).float() + 0.3 * torch.randn(16)
        gain = reward - value
        entropy = -(odds.exp() * odds).sum(1).mean()
        taken = odds.gather(1, action)[:, 0]
        return -(gain.detach() * taken).mean() + 0.5 * gain.square().mean() - 0.01 * entropy

    return fit(model, loss_of, steps, lr=3e-3, clip=0.5)


def wasserstein(steps: int) -> Iterator[Update]:
    """A critic with clipped weights, and a generator at every fifth step."""
    critic, generator = mlp(2, 32, 1), mlp(4, 32, 2)
    first = torch.optim.RMSprop(critic.parameters(), 5e-4)
    second = torch.optim.RMSprop(generator.parameters(), 5e-4)
    for step in range(steps):
        real = torch.randn(32, 2) * 0.3 + torch.tensor([2.0, -1.0])
        fake = generator(torch.randn(32, 4))
        loss = critic(fake.detach()).mean() - critic(real).mean()
        first.zero_grad()
        loss.backward()
        yield Update(first, loss.detach(), is_game=step % 5 == 0)
        first.step()
        with torch.no_grad():
            for weight in critic.parameters():
                weight.clamp_(-0.05, 0.05)
        if step % 5 == 4:
            lost = -critic(generator(torch.randn(32, 4))).mean()
            second.zero_grad()
            lost.backward()
            second.step()


def gan(steps: int) -> Iterator[Update]:
    """Discriminator and generator in turn."""
    critic, generator = mlp(2, 32, 1), mlp(4, 32, 2)
    first = torch.optim.Adam(critic.parameters(), 1e-3, betas=(0.5, 0.9))
    second = torch.optim.Adam(generator.parameters(), 1e-3, betas=(0.5, 0.9))
    for _ in range(steps):
        angle = 6.28 * torch.rand(32)
        real = torch.stack([angle.cos(), angle.sin()], 1)
        fake = generator(torch.randn(32, 4))
        loss = F.softplus(-critic(real)).mean() + F.softplus(critic(fake.detach())).mean()
        first.zero_grad()
        loss.backward()
        yield Update(first, loss.detach(), is_game=True)
        first.step()
        lost = F.softplus(-critic(fake)).mean()
        second.zero_grad()
        lost.backward()
        second.step()


def dqn(steps: int) -> Iterator[Update]:
    """Q-learning on a corridor with a target network: the loss grows with the values."""
    model, target = mlp(8, 32, 2), mlp(8, 32, 2)
    target.load_state_dict(model.state_dict())
    places = torch.eye(8)

    def loss_of(step: int) -> torch.Tensor:
        if step % 50 == 0:
            target.load_state_dict(model.state_dict())
        place, action = torch.randint(0, 8, (32,)), torch.randint(0, 2, (32,))
        after = (place + 2 * action - 1).clamp(0, 7)
        reward = (after == 7).float()
        with torch.no_grad():
            aim = reward + 0.95 * target(places[after]).max(1).values * (after != 7)
        return F.smooth_l1_loss(model(places[place]).gather(1, action[:, None])[:, 0], aim)

    return fit(model, loss_of, steps, lr=1e-3)


TRAININGS = {
    "gaussian_vae": gaussian_vae,
    "flow": flow,
    "actor_critic": actor_critic,
    "wasserstein": wasserstein,
    "gan": gan,
    "dqn": dqn,
}
