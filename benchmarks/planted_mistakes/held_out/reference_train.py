"""Image classification over several processes, in the manner of a library's reference scripts."""

import argparse
import datetime
import os
import time

import presets
import torch
import torch.utils.data
import utils
from torch import nn
from torch.utils.data.distributed import DistributedSampler as DistSampler


def train_one_epoch(model, criterion, optimizer, data_loader, device, epoch, args, scaler=None):
    model.train()
    logger = utils.MetricLogger(delimiter="  ")
    for i, (image, target) in enumerate(logger.log_every(data_loader, args.print_freq, f"Epoch [{epoch}]")):
        start = time.time()
        image, target = image.to(device), target.to(device)
        with torch.cuda.amp.autocast(enabled=scaler is not None):
            output = model(image)
            loss = criterion(output, target)
        optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(loss).backward()
            if args.clip_grad_norm is not None:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad_norm)
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            if args.clip_grad_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad_norm)
            optimizer.step()
        logger.update(loss=loss.item(), img_s=image.shape[0] / (time.time() - start))


def evaluate(model, criterion, data_loader, device):
    model.eval()
    num_processed = 0
    correct = 0
    for image, target in data_loader:
        image, target = image.to(device), target.to(device)
        output = model(image)  # planted: eval-with-gradients
        loss = criterion(output, target)
        correct += (output.argmax(1) == target).sum().item()
        num_processed += image.shape[0]
    return correct / num_processed


def load_data(args):
    dataset = presets.ImageFolder(os.path.join(args.data_path, "train"))
    dataset_test = presets.ImageFolder(os.path.join(args.data_path, "val"))
    if args.distributed:
        train_sampler = DistSampler(dataset)  # planted: sampler-without-set-epoch
        test_sampler = DistSampler(dataset_test, shuffle=False)
    else:
        train_sampler = torch.utils.data.RandomSampler(dataset)
        test_sampler = torch.utils.data.SequentialSampler(dataset_test)
    return dataset, dataset_test, train_sampler, test_sampler


def main(args):
    utils.init_distributed_mode(args)
    device = torch.device(args.device)
    dataset, dataset_test, train_sampler, test_sampler = load_data(args)
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=args.batch_size, sampler=train_sampler, num_workers=args.workers
    )
    loader_test = torch.utils.data.DataLoader(dataset_test, batch_size=args.batch_size, sampler=test_sampler)
    model = presets.get_model(args.model).to(device)
    model_without_ddp = model
    if args.distributed:
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[args.gpu])
        model_without_ddp = model.module
    criterion = nn.CrossEntropyLoss(label_smoothing=args.label_smoothing)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)
    scaler = torch.cuda.amp.GradScaler() if args.amp else None
    main_lr_scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=5)
    lr_scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, main_lr_scheduler], [5])
    start_time = time.time()
    for epoch in range(args.start_epoch, args.epochs):
        train_one_epoch(model, criterion, optimizer, loader, device, epoch, args, scaler)
        lr_scheduler.step()
        evaluate(model, criterion, loader_test, device=device)
        if args.output_dir:
            checkpoint = {
                "model": model_without_ddp.state_dict(),
                "optimizer": optimizer.state_dict(),
                "epoch": epoch,
                "rng": torch.get_rng_state(),
                "args": args,
            }
            if scaler:
                checkpoint["scaler"] = scaler.state_dict()
            utils.save_on_master(checkpoint, os.path.join(args.output_dir, f"model_{epoch}.pth"))
            torch.save(checkpoint, os.path.join(args.output_dir, "last.pth"))  # planted: checkpoint-without-scheduler
    print(f"Training time {datetime.timedelta(seconds=int(time.time() - start_time))}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-path")
    main(parser.parse_args())
