"""Pretrains a small GPT on one GPU, one file, settings at the top."""

import math
import os
import time
from contextlib import nullcontext

import numpy as np
import torch
from torch.cuda.amp import GradScaler
from torch.nn.utils import clip_grad_norm_ as clip

from model import GPT, GPTConfig

out_dir = "out"
eval_interval = 2000
eval_iters = 200
gradient_accumulation_steps = 40
batch_size = 12
block_size = 1024
learning_rate = 6e-4
max_iters = 600000
grad_clip = 1.0
device = "cuda"
ctx = nullcontext() if device == "cpu" else torch.amp.autocast("cuda", dtype=torch.float16)


def get_batch(split):
    data = np.memmap(os.path.join("data", f"{split}.bin"), dtype=np.uint16, mode="r")
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy(data[i : i + block_size].astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + block_size].astype(np.int64)) for i in ix])
    return x.to(device), y.to(device)


model = GPT(GPTConfig(block_size=block_size)).to(device)
scaler = GradScaler()
optimizer = model.configure_optimizers(0.1, learning_rate, (0.9, 0.95), device)
raw_model = model


@torch.no_grad()
def estimate_loss():
    out = {}
    model.eval()
    for split in ["train", "val"]:
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            X, Y = get_batch(split)
            with ctx:
                logits, loss = model(X, Y)
            losses[k] = loss.item()
        out[split] = losses.mean()
    return out


def get_lr(it):
    return learning_rate * 0.5 * (1.0 + math.cos(math.pi * it / max_iters))


def limit_gradients(net, limit):
    return clip(net.parameters(), limit)


iter_num = 0
best_val_loss = 1e9
X, Y = get_batch("train")
t0 = time.time()
while True:
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    if iter_num % eval_interval == 0:
        losses = estimate_loss()  # planted: eval-without-train
        print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
        if losses["val"] < best_val_loss:
            best_val_loss = losses["val"]
            checkpoint = {
                "model": raw_model.state_dict(),
                "scaler": scaler.state_dict(),
                "rng": torch.get_rng_state(),
                "iter_num": iter_num,
                "best_val_loss": best_val_loss,
            }
            torch.save(checkpoint, os.path.join(out_dir, "ckpt.pt"))  # planted: checkpoint-without-optimizer
    for micro_step in range(gradient_accumulation_steps):
        with ctx:
            logits, loss = model(X, Y)
            loss = loss / gradient_accumulation_steps
        X, Y = get_batch("train")
        scaler.scale(loss).backward()
    norm = limit_gradients(model, grad_clip)  # planted: clip-before-unscale
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
    if iter_num > max_iters:
        break
