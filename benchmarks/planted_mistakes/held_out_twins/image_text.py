"""Contrastive learning of images and texts, and a probe on top."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy as ce
from torch.nn.functional import normalize
from torch.nn.functional import softmax as sm
from torch.optim import SGD


class NTXent(nn.Module):
    def __init__(self, temperature=0.5):
        super().__init__()
        self.temperature = temperature

    def forward(self, z_i, z_j):
        z = normalize(torch.cat([z_i, z_j]), dim=1)
        sim = z @ z.t() / self.temperature
        pos = torch.cat([torch.diag(sim, z_i.size(0)), torch.diag(sim, -z_i.size(0))])
        mask = ~torch.eye(sim.size(0), dtype=torch.bool, device=sim.device)
        loss = torch.logsumexp(sim.masked_fill(~mask, float("-inf")), dim=1) - pos
        return loss.mean()


class Probe(nn.Module):
    def __init__(self, encoder, width, classes):
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        with torch.no_grad():
            h = self.encoder(x)
        return self.head(h)


def run_probe(encoder, loader, args):
    probe = Probe(encoder, 512, args.classes).cuda()
    opt = SGD(probe.head.parameters(), lr=args.lr, momentum=0.9)
    for epoch in range(args.epochs):
        for images, labels in loader:
            out = probe(images.cuda())
            loss = ce(out, labels.cuda())
            opt.zero_grad()
            loss.backward()
            opt.step()


class SimCLR:
    def __init__(self, *args, **kwargs):
        self.args = kwargs["args"]
        self.model = kwargs["model"].to(self.args.device)
        self.optimizer = kwargs["optimizer"]
        self.scheduler = kwargs["scheduler"]
        self.criterion = NTXent(self.args.temperature).to(self.args.device)

    def _step(self, images):
        a, b = images
        loss = self.criterion(self.model(a), self.model(b))
        self.optimizer.zero_grad()
        loss.backward()
        return loss

    def train(self, train_loader):
        n_iter = 0
        for epoch_counter in range(self.args.epochs):
            for images, _ in train_loader:
                loss = self._step([i.to(self.args.device) for i in images])
                self.optimizer.step()
                self.scheduler.step()
                n_iter += 1
