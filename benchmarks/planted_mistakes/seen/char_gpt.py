"""Trains a small GPT; one file, settings at the top."""

import math
import os
import time
from contextlib import nullcontext

import torch
import torch.nn as nn
import torch.nn.functional as NF
from torch.nn.utils import clip_grad_norm_ as clip

out_dir = "out"
batch_size = 12
block_size = 1024
gradient_accumulation_steps = 5 * 8
learning_rate = 6e-4
max_iters = 600000
grad_clip = 1.0
dtype = "float16"
device = "cuda"

ptdtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]
ctx = nullcontext() if device == "cpu" else torch.amp.autocast(device_type=device, dtype=ptdtype)


class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.n_head = config.n_head

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).half().chunk(3, dim=-1)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = NF.softmax(att, dim=-1)  # planted: softmax-without-dtype
        return (att @ v).float()


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.block = CausalSelfAttention(config)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size)

    def forward(self, idx, targets=None):
        logits = self.lm_head(self.block(idx))
        if targets is None:
            return logits, None
        probs = NF.softmax(logits, dim=-1)
        picked = probs.view(-1, probs.size(-1))[torch.arange(targets.numel()), targets.view(-1)]
        loss = -torch.log(picked).mean()  # planted: log-without-epsilon
        return logits, loss


model = GPT(config).to(device)
scaler = torch.amp.GradScaler(device, enabled=(dtype == "float16"))
optimizer = model.configure_optimizers(0.1, learning_rate, (0.9, 0.95))
X, Y = get_batch("train")
iter_num = 0
while True:
    for micro_step in range(gradient_accumulation_steps):
        with ctx:
            logits, loss = model(X, Y)
            loss = loss / gradient_accumulation_steps
        X, Y = get_batch("train")
        scaler.scale(loss).backward()
    if grad_clip != 0.0:
        clip(model.parameters(), grad_clip)  # planted: clip-before-unscale
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    if iter_num % 2000 == 0:
        checkpoint = {
            "model": model.state_dict(),
            "iter_num": iter_num,
            "config": config,
            "scaler": scaler.state_dict(),
            "rng": torch.get_rng_state(),
        }
        torch.save(checkpoint, os.path.join(out_dir, "ckpt.pt"))  # planted: checkpoint-without-optimizer
    iter_num += 1
    if iter_num > max_iters:
        break
