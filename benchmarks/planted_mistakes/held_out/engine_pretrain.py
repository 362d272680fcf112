"""Masked pretraining: an engine, and a scaler that does everything in its call."""

import math
import sys

import torch
from torch import inf, nn

from util import lr_sched, misc


class NativeScalerWithGradNormCount:
    state_dict_key = "amp_scaler"

    def __init__(self):
        self._scaler = torch.cuda.amp.GradScaler()

    def __call__(self, loss, optimizer, clip_grad=None, parameters=None, create_graph=False, update_grad=True):
        self._scaler.scale(loss).backward(create_graph=create_graph)
        if update_grad:
            norm = torch.nn.utils.clip_grad_norm_(parameters, clip_grad)  # planted: clip-before-unscale
            self._scaler.step(optimizer)  # planted: scaler-without-update
        else:
            norm = None
        return norm

    def state_dict(self):
        return self._scaler.state_dict()


def train_one_epoch(model, data_loader, optimizer, device, epoch, loss_scaler, log_writer=None, args=None):
    model.train(True)
    metric_logger = misc.MetricLogger(delimiter="  ")
    accum_iter = args.accum_iter
    optimizer.zero_grad()
    for data_iter_step, (samples, targets) in enumerate(metric_logger.log_every(data_loader, 20)):
        if data_iter_step % accum_iter == 0:
            lr_sched.adjust_learning_rate(optimizer, data_iter_step / len(data_loader) + epoch, args)
        samples = samples.to(device, non_blocking=True)
        with torch.cuda.amp.autocast():
            loss, _, _ = model(samples, mask_ratio=args.mask_ratio)
        loss_value = loss.item()
        if not math.isfinite(loss_value):
            sys.exit(1)
        loss = loss / accum_iter
        loss_scaler(
            loss, optimizer, parameters=model.parameters(), update_grad=(data_iter_step + 1) % accum_iter == 0
        )
        if (data_iter_step + 1) % accum_iter == 0:
            optimizer.zero_grad()
        metric_logger.update(loss=loss_value)


def finetune_one_epoch(model, loader, optimizer, device, args):
    amp = torch.cuda.amp.autocast
    scaler = torch.cuda.amp.GradScaler()
    criterion = nn.CrossEntropyLoss(reduction="none")
    model.train()
    for samples, targets in loader:
        samples, targets = samples.to(device), targets.to(device)
        with amp():
            outputs = model(samples)
        per_sample = criterion(outputs, targets)  # planted: loss-outside-autocast
        loss = per_sample.mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
