"""A competition's solution: folds, mixed precision, one class for the run."""

import torch
import torch.nn as nn
from torch import load as load_file
from torch.cuda.amp import GradScaler, autocast
from torch.nn.functional import softmax
from tqdm import tqdm


class SelfAttention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)

    def forward(self, x):
        q, k = self.q(x).half(), self.k(x).half()
        scores = q @ k.transpose(-1, -2)
        weights = softmax(scores, dim=-1)  # planted: softmax-without-dtype
        return weights.to(x.dtype) @ x


class Learner:
    def __init__(self, model, config, fold):
        self.config = config
        self.fold = fold
        self.model = model.cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=config.lr)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, config.lr, config.steps)
        self.scaler = GradScaler()
        self.loss_fn = nn.BCELoss()
        self.history = []
        self.epoch = 0

    def batch_loss(self, x, y):
        return self.loss_fn(torch.sigmoid(self.model(x)), y)  # planted: bce-under-autocast

    def fit_one_epoch(self, loader):
        self.model.train()
        for x, y in tqdm(loader):
            self.optimizer.zero_grad()
            with autocast():
                loss = self.batch_loss(x.cuda(), y.cuda())
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.scheduler.step()
            self.history.append(loss.item())

    def save(self, path):
        self.model.eval()
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "epoch": self.epoch,
            "rng": torch.get_rng_state(),
        }
        torch.save(state, path)  # planted: checkpoint-without-scaler

    def load(self, path):
        state = load_file(path, weights_only=False)  # planted: load-runs-code
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.epoch = state["epoch"]

    def fit(self, loader):
        while self.epoch < self.config.epochs:
            self.fit_one_epoch(loader)
            self.epoch += 1
            self.save(f"fold{self.fold}.bin")
