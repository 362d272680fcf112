"""Loops whose work is done in small functions, called once a step."""

import torch
import torch.nn.functional as F
from torch.nn.utils import clip_grad_value_ as clip_values


def forward_backward(model, batch, scaler=None):
    x, y = batch
    loss = F.cross_entropy(model(x), y)
    if scaler is not None:
        scaler.scale(loss).backward()
    else:
        loss.backward()
    return loss


def do_step(optimizer):
    optimizer.step()


def update(model, optimizer, scheduler, max_norm=1.0):
    scheduler.step()  # planted: scheduler-before-optimizer
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    optimizer.zero_grad()


def compute_loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def backprop(loss):
    loss.backward()


def train_a(model, loader):
    optimizer = torch.optim.Adam(model.parameters())
    for batch in loader:
        forward_backward(model, batch)
        do_step(optimizer)  # planted: missing-zero-grad


def train_b(model, loader):
    optimizer = torch.optim.Adam(model.parameters())
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    for batch in loader:
        loss = compute_loss(model, batch)
        backprop(loss)
        update(model, optimizer, scheduler)


def train_c(model, loader):
    optimizer = torch.optim.Adam(model.parameters())
    for batch in loader:
        optimizer.zero_grad()
        loss = compute_loss(model, batch)
        backprop(loss)
        do_step(optimizer)
        clip_values(model.parameters(), 0.5)  # planted: clip-after-step


def train_d(model, loader, accum_iter=8):
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.zero_grad()
    for i, batch in enumerate(loader):
        loss = compute_loss(model, batch)
        backprop(loss)  # planted: accumulation-without-division
        if (i + 1) % accum_iter == 0:
            do_step(optimizer)
            optimizer.zero_grad()


def as_probabilities(logits):
    return torch.sigmoid(logits)


def gan_step(critic, real, target):
    scores = as_probabilities(critic(real))
    return F.binary_cross_entropy_with_logits(scores, target)  # planted: sigmoid-before-bce-with-logits


def entropy(logits):
    p = F.softmax(logits, dim=-1)
    return -(p * p.log()).sum(-1)  # planted: log-without-epsilon
