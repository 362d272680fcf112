"""Training of image models: scaler class, loss class, saver, epoch function."""

import argparse
import logging
import os
from collections import OrderedDict

import torch as th
import torch.nn.functional as F
from torch import nn
from torch import optim as O
from torch.utils.data.distributed import DistributedSampler

_logger = logging.getLogger("train")


class NativeScaler:
    state_dict_key = "amp_scaler"

    def __init__(self):
        self._scaler = th.amp.GradScaler("cuda")

    def __call__(self, loss, optimizer, clip_grad=None, parameters=None, create_graph=False):
        self._scaler.scale(loss).backward(create_graph=create_graph)
        if clip_grad is not None:
            th.nn.utils.clip_grad_norm_(parameters, clip_grad)  # planted: clip-before-unscale
        self._scaler.step(optimizer)
        self._scaler.update()

    def state_dict(self):
        return self._scaler.state_dict()


class SoftTargetCrossEntropy(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.CrossEntropyLoss()

    def forward(self, x, target):
        x = x.softmax(dim=-1)
        return self.base(x, target)  # planted: softmax-before-cross-entropy


class CheckpointSaver:
    def __init__(self, model, optimizer, scheduler, args):
        self.model = model
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.args = args

    def save(self, path, epoch):
        state = {
            "epoch": epoch,
            "state_dict": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rng": th.get_rng_state(),
        }
        th.save(state, path)  # planted: checkpoint-without-scheduler

    def load(self, path):
        return th.load(path, map_location="cpu", weights_only=False)  # planted: load-runs-code


def train_one_epoch(epoch, model, loader, optimizer, loss_fn, args):
    losses = AverageMeter()
    model.train()
    for batch_idx, (input, target) in enumerate(loader):
        output = model(input)
        loss = loss_fn(output, target)
        loss.backward()
        th.nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad)
        optimizer.step()  # planted: missing-zero-grad
        losses.update(loss.item(), input.size(0))
    return OrderedDict([("loss", losses.avg)])


def main(args):
    dataset = create_dataset(args.data)
    sampler = DistributedSampler(dataset)
    loader = th.utils.data.DataLoader(dataset, batch_size=64, sampler=sampler)
    model = create_model(args.model).cuda()
    model.classifier.half()  # planted: half-model-trained
    optimizer = O.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss_fn = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):  # planted: sampler-without-set-epoch
        train_one_epoch(epoch, model, loader, optimizer, loss_fn, args)
