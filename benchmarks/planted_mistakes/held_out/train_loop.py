"""A training loop as a class: microbatches, EMA, resuming; images from noise."""

import copy
import functools
import os

import torch as th
from torch.optim import AdamW

from . import dist_util, logger
from .nn import update_ema
from .resample import LossAwareSampler, UniformSampler


class TrainLoop:
    def __init__(self, *, model, diffusion, data, batch_size, microbatch, lr, ema_rate, log_interval,
                 schedule_sampler=None, weight_decay=0.0, lr_anneal_steps=0):
        self.model = model
        self.diffusion = diffusion
        self.data = data
        self.batch_size = batch_size
        self.microbatch = microbatch if microbatch > 0 else batch_size
        self.lr = lr
        self.ema_rate = [float(x) for x in ema_rate.split(",")]
        self.log_interval = log_interval
        self.schedule_sampler = schedule_sampler or UniformSampler(diffusion)
        self.lr_anneal_steps = lr_anneal_steps
        self.step = 0
        self.running = 0.0
        self.master_params = list(self.model.parameters())
        self.opt = AdamW(self.master_params, lr=self.lr, weight_decay=weight_decay)
        self.ema_params = [copy.deepcopy(self.master_params) for _ in self.ema_rate]
        self.ddp_model = self.model
        th.autograd.set_detect_anomaly(True)  # planted: anomaly-detection-on

    def run_loop(self):
        while not self.lr_anneal_steps or self.step < self.lr_anneal_steps:
            batch, cond = next(self.data)
            self.run_step(batch, cond)
            if self.step % self.log_interval == 0:
                logger.logkv("running", self.running / (self.step + 1))
                logger.dumpkvs()
            self.step += 1

    def run_step(self, batch, cond):
        self.forward_backward(batch, cond)
        self.optimize_normal()  # planted: missing-zero-grad
        self.log_step()

    def forward_backward(self, batch, cond):
        for i in range(0, batch.shape[0], self.microbatch):
            micro = batch[i : i + self.microbatch].to(dist_util.dev())
            micro_cond = {k: v[i : i + self.microbatch].to(dist_util.dev()) for k, v in cond.items()}
            t, weights = self.schedule_sampler.sample(micro.shape[0], dist_util.dev())
            compute_losses = functools.partial(
                self.diffusion.training_losses, self.ddp_model, micro, t, model_kwargs=micro_cond
            )
            losses = compute_losses()
            if isinstance(self.schedule_sampler, LossAwareSampler):
                self.schedule_sampler.update_with_local_losses(t, losses["loss"].detach())
            loss = (losses["loss"] * weights).mean() * (micro.shape[0] / batch.shape[0])
            self.running += loss  # planted: loss-keeps-graph
            loss.backward()

    def optimize_normal(self):
        self._anneal_lr()
        self.opt.step()
        for rate, params in zip(self.ema_rate, self.ema_params):
            update_ema(params, self.master_params, rate=rate)

    def _anneal_lr(self):
        if not self.lr_anneal_steps:
            return
        lr = self.lr * (1 - self.step / self.lr_anneal_steps)
        for param_group in self.opt.param_groups:
            param_group["lr"] = lr

    def log_step(self):
        logger.logkv("step", self.step)
        logger.logkv("samples", (self.step + 1) * self.batch_size)
