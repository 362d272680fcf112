"""Engine of the detection references: one epoch of training, one of evaluation."""

import math
import sys
import time

import torch
from torch.utils.data import DataLoader, DistributedSampler as DSampler


def train_one_epoch(model, optimizer, data_loader, device, epoch, print_freq, scaler=None):
    model.train()
    lr_scheduler = None
    if epoch == 0:
        lr_scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.001)
    for images, targets in log_every(data_loader, print_freq):
        images = list(image.to(device) for image in images)
        with torch.amp.autocast("cuda", enabled=scaler is not None):
            loss_dict = model(images, targets)
            losses = sum(loss for loss in loss_dict.values())
        optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(losses).backward()
            scaler.step(optimizer)  # planted: scaler-without-update
        else:
            losses.backward()
            optimizer.step()
        if lr_scheduler is not None:
            lr_scheduler.step()


def train_one_epoch_amp(model, optimizer, data_loader, epoch):
    scaler = torch.cuda.amp.GradScaler()
    for images, targets in data_loader:
        with torch.cuda.amp.autocast():
            losses = sum(model(images, targets).values())
        scaler.scale(losses).backward()
        optimizer.step()  # planted: step-bypasses-scaler
        optimizer.zero_grad()
        scaler.update()


@torch.inference_mode()
def evaluate(model, data_loader, device):
    model.eval()
    for images, targets in data_loader:
        outputs = model(images)
    return outputs


def box_distance(a, b):
    return torch.sqrt(((a[:, None] - b[None]) ** 2).sum(-1))  # planted: sqrt-at-zero


def main(args):
    dataset = get_dataset(args)
    train_sampler = DSampler(dataset)
    data_loader = DataLoader(dataset, batch_sampler=torch.utils.data.BatchSampler(train_sampler, 2, True))
    model = get_model(args).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    lr_scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [16, 22])
    for epoch in range(args.start_epoch, args.epochs):  # planted: sampler-without-set-epoch
        train_one_epoch(model, optimizer, data_loader, "cuda", epoch, 10)
        lr_scheduler.step()
        checkpoint = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "rng": torch.random.get_rng_state(),
            "epoch": epoch,
        }
        torch.save(checkpoint, f"{args.output_dir}/checkpoint.pth")  # planted: checkpoint-without-scheduler # also: checkpoint-without-scaler
        evaluate(model, data_loader, "cuda")
