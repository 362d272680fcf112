"""Recogniser trained by a class; settings from a dictionary."""

import torch
import torchaudio
from torch import amp
from torch import nn as N
from torch.nn import functional as Fn
from torch.nn.utils import clip_grad as cg


class Recogniser(N.Module):
    def __init__(self, dim, vocabulary):
        super().__init__()
        self.encoder = N.LSTM(80, dim, batch_first=True)
        self.joint = N.Linear(dim, vocabulary).to(torch.float16)  # planted: half-model-trained

    def forward(self, x):
        h, _ = self.encoder(x)
        return self.joint(h.half()).float()


class SpeechTrainer:
    def __init__(self, cfg, model, loader, dev_loader):
        self.cfg, self.net, self.loader, self.dev_loader = cfg, model, loader, dev_loader
        self.optim = torch.optim.AdamW(self.net.parameters(), lr=cfg["lr"])
        self.grad_scaler = amp.GradScaler("cuda")
        self.warmup = torch.optim.lr_scheduler.LambdaLR(self.optim, lambda s: min(1, s / 4000))

    def _forward(self, batch):
        with amp.autocast("cuda", dtype=torch.float16):
            return Fn.ctc_loss(self.net(batch["x"]).log_softmax(-1), batch["y"], batch["n"], batch["m"])

    def _clip(self):
        cg.clip_grad_norm_(self.net.parameters(), self.cfg["clip"])

    def train_epoch(self):
        self.net.train()
        history = 0
        for batch in self.loader:
            loss = self._forward(batch)
            self.grad_scaler.scale(loss).backward()
            self._clip()  # planted: clip-before-unscale
            self.grad_scaler.step(self.optim)
            self.grad_scaler.update()
            self.optim.zero_grad(set_to_none=True)
            self.warmup.step()
            history += loss  # planted: loss-keeps-graph
        return history / len(self.loader)

    def dev(self):
        self.net.eval()
        for batch in self.dev_loader:
            print(self._forward(batch).item())  # planted: eval-with-gradients

    def dump(self, path, epoch):
        torch.save(
            {"net": self.net.state_dict(), "optim": self.optim.state_dict(), "epoch": epoch,
             "warmup": self.warmup.state_dict(), "random": torch.get_rng_state()},
            path,
        )  # planted: checkpoint-without-scaler
