"""Segmentation with a hand-written loop, in the manner of many repositories of papers."""

import os

import torch as t
import torch.nn.functional as tf
from torch import optim
from torch.amp import GradScaler, autocast
from torch.optim import lr_scheduler as sched
from torch.utils import data as tud


def dice_loss(inputs, targets):
    inputs = tf.sigmoid(inputs)
    overlap = (inputs * targets).sum()
    return 1 - (2 * overlap + 1) / (inputs.sum() + targets.sum() + 1)


class Criterion:
    def __init__(self):
        self.ce = t.nn.CrossEntropyLoss(ignore_index=255)
        self.bce = t.nn.BCEWithLogitsLoss()
        self.act = t.nn.Softmax(dim=1)

    def __call__(self, out, target):
        return self.ce(self.act(out), target)  # planted: softmax-before-cross-entropy

    def edges(self, out, edge):
        prob = tf.sigmoid(out)
        return self.bce(prob, edge)  # planted: sigmoid-before-bce-with-logits


def run(cfg, net, trainset):
    sampler = tud.distributed.DistributedSampler(trainset)
    loader = tud.DataLoader(trainset, sampler=sampler, batch_size=4)
    opt = optim.SGD(net.parameters(), lr=0.01)
    poly = sched.PolynomialLR(opt, 100)
    scaler = GradScaler()
    crit = Criterion()
    for epoch in range(cfg.epochs):  # planted: sampler-without-set-epoch
        net.train()
        for it, (img, lab) in enumerate(loader):
            with autocast("cuda"):
                out = net(img)
            loss = crit(out, lab)  # planted: loss-outside-autocast
            scaler.scale(loss).backward()
            if (it + 1) % cfg.accumulate == 0:  # planted: accumulation-without-division
                scaler.step(opt)  # planted: scaler-without-update
                opt.zero_grad()
        poly.step()
        payload = {"net": net.state_dict(), "epoch": epoch, "poly": poly.state_dict()}
        payload["scaler"] = scaler.state_dict()
        payload["rng"] = t.get_rng_state()
        t.save(payload, os.path.join(cfg.out, "last.pth"))  # planted: checkpoint-without-optimizer


def finetune(net, loader):
    net = net.bfloat16()  # planted: bfloat16-model-trained
    opt = optim.AdamW(net.parameters(), 1e-5)
    plan = sched.OneCycleLR(opt, 1e-4, total_steps=1000)
    for img, lab in loader:
        opt.zero_grad()
        loss = tf.cross_entropy(net(img).float(), lab)
        loss.backward()
        plan.step()  # planted: scheduler-before-optimizer
        opt.step()
