"""REINFORCE and A2C, each in one class."""

import gymnasium as gym
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim


class Policy(nn.Module):
    def __init__(self, observations, actions):
        super().__init__()
        self.fc1 = nn.Linear(observations, 128)
        self.fc2 = nn.Linear(128, actions)
        self.v = nn.Linear(128, 1)

    def pi(self, x):
        return F.softmax(self.fc2(F.relu(self.fc1(x))), dim=-1)

    def log_pi(self, x):
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), dim=-1)

    def value(self, x):
        return self.v(F.relu(self.fc1(x)))


class ActorCritic:
    def __init__(self, env, lr=2e-4, gamma=0.98):
        self.net = Policy(env.observation_space.shape[0], env.action_space.n)
        self.env = env
        self.gamma = gamma
        self.optim = optim.Adam(self.net.parameters(), lr=lr)
        self.batch = []

    def _loss(self, states, actions, targets):
        with torch.no_grad():
            advantage = targets - self.net.value(states).squeeze(-1)
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        rows = torch.arange(len(actions))
        log_probs = self.net.log_pi(states)[rows, actions]
        critic = F.smooth_l1_loss(self.net.value(states).squeeze(-1), targets)
        return -(log_probs * advantage).mean() + 0.5 * critic

    def _apply(self, loss):
        params = self.net.parameters()
        self.optim.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(params, 0.5)
        self.optim.step()

    def train_net(self, horizon):
        states, actions, rewards = zip(*self.batch)
        states = torch.stack(states)
        actions = torch.tensor(actions)
        R, targets = 0.0, []
        for r in rewards[::-1]:
            R = r + self.gamma * R
            targets.insert(0, R)
        self._apply(self._loss(states, actions, torch.tensor(targets)))
        self.batch = []

    def learn(self, episodes):
        for n_epi in range(episodes):
            s, _ = self.env.reset()
            done = False
            while not done:
                with torch.no_grad():
                    prob = self.net.pi(torch.from_numpy(s).float())
                a = torch.multinomial(prob, 1).item()
                s_next, r, done, truncated, _ = self.env.step(a)
                self.batch.append((torch.from_numpy(s).float(), a, r / 100.0))
                s = s_next
            self.train_net(len(self.batch))


if __name__ == "__main__":
    ActorCritic(gym.make("CartPole-v1")).learn(10000)
