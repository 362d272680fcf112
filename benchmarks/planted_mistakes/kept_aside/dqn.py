"""Q-learning and an actor-critic, one file."""

import gymnasium as gym
import torch
import torch.nn.functional as f
from torch import nn, optim
from torch.nn import utils as nnu


def learn(q, target_q, memory, optimizer, gamma=0.99):
    s, a, r, s2, done = memory.sample(64)
    with torch.no_grad():
        best = target_q(s2).max(1).values
    td = f.smooth_l1_loss(q(s).gather(1, a).squeeze(1), r + gamma * best * (1 - done))
    td.backward()
    nnu.clip_grad_value_(q.parameters(), 100)
    optimizer.step()


def run(env, q, target_q, memory):
    optimizer = optim.RMSprop(q.parameters(), lr=2.5e-4)
    for frame in range(1_000_000):
        act(env, q, memory)
        learn(q, target_q, memory, optimizer)  # planted: missing-zero-grad
        if frame % 10_000 == 0:
            target_q.load_state_dict(q.state_dict())


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 64)
        self.pi = nn.Linear(64, 2)
        self.v = nn.Linear(64, 1)

    def policy(self, s):
        return f.softmax(self.pi(torch.relu(self.body(s))), -1)

    def losses(self, s, a, returns):
        prob = self.policy(s)
        logp = prob.gather(1, a[:, None]).squeeze(1).log()  # planted: log-without-epsilon
        advantage = returns - self.v(torch.relu(self.body(s))).squeeze(1)
        advantage = (advantage - advantage.mean()).div(advantage.std())  # planted: unguarded-normalisation
        return -(logp * advantage.detach()).mean() + advantage.pow(2).mean()


def improve(net, opt, batch):
    loss = net.losses(*batch)
    opt.zero_grad()
    nnu.clip_grad_norm_(net.parameters(), 0.5)  # planted: clip-before-backward
    loss.backward()
    opt.step()
