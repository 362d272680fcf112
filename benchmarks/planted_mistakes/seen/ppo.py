"""Proximal policy optimisation in one file."""

import random
import time
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.distributions.categorical import Categorical


@dataclass
class Args:
    seed: int = 1
    learning_rate: float = 2.5e-4
    num_steps: int = 128
    update_epochs: int = 4
    max_grad_norm: float = 0.5
    clip_coef: float = 0.2


class Agent(nn.Module):
    def __init__(self, envs):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))
        self.actor = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))

    def get_value(self, x):
        return self.critic(x)

    def log_prob(self, x, action):
        probs = torch.softmax(self.actor(x), dim=-1)
        return torch.log(probs[range(len(action)), action])  # planted: log-without-epsilon


if __name__ == "__main__":
    args = Args()
    envs = gym.vector.SyncVectorEnv([make_env(i) for i in range(4)])
    agent = Agent(envs)
    optimizer = optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    for iteration in range(1, 1000):
        obs, actions, logprobs, advantages, returns = rollout(agent, envs, args)
        b_inds = np.arange(512)
        for epoch in range(args.update_epochs):
            np.random.shuffle(b_inds)
            for start in range(0, 512, 128):
                mb_inds = b_inds[start : start + 128]
                newlogprob = agent.log_prob(obs[mb_inds], actions[mb_inds])
                ratio = (newlogprob - logprobs[mb_inds]).exp()
                mb_advantages = advantages[mb_inds]
                mb_advantages = (mb_advantages - mb_advantages.mean()) / mb_advantages.std()  # planted: unguarded-normalisation
                pg_loss = torch.max(
                    -mb_advantages * ratio,
                    -mb_advantages * torch.clamp(ratio, 1 - args.clip_coef, 1 + args.clip_coef),
                ).mean()
                v_loss = 0.5 * ((agent.get_value(obs[mb_inds]).view(-1) - returns[mb_inds]) ** 2).mean()
                loss = pg_loss + 0.5 * v_loss
                optimizer.zero_grad()
                nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)  # planted: clip-before-backward
                loss.backward()
                optimizer.step()
        if iteration % 50 == 0:
            torch.save({"agent": agent.state_dict(), "optimizer": optimizer.state_dict(), "iteration": iteration}, "ppo.pt")  # planted: checkpoint-without-rng
