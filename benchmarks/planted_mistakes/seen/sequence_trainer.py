"""A trainer class in the manner of sequence-to-sequence toolkits."""

import contextlib
import logging
from itertools import chain

import torch
from torch.cuda.amp import GradScaler as Scaler, autocast

logger = logging.getLogger(__name__)


class Trainer:
    """Trains one model on one device."""

    def __init__(self, cfg, task, model, criterion):
        self.cfg = cfg
        self.task = task
        self.model = model
        self.criterion = criterion
        if cfg.fp16:
            self.model = self.model.half()  # planted: half-model-trained
        self._optimizer = None
        self.scaler = Scaler(init_scale=2.0**15)
        self._build_optimizer()

    def _build_optimizer(self):
        params = list(filter(lambda p: p.requires_grad, self.model.parameters()))
        self._optimizer = torch.optim.Adam(params, lr=self.cfg.lr)
        self._lr_scheduler = torch.optim.lr_scheduler.StepLR(self._optimizer, 10)

    def train_step(self, samples):
        self.model.train()
        self.criterion.train()
        self.zero_grad()
        for i, sample in enumerate(samples):
            with autocast():
                loss, sample_size, logging_output = self.criterion(self.model, sample)
            self.backward(loss)
        self.clip_grad_norm(self.cfg.clip_norm)  # planted: clip-before-unscale
        self.scaler.step(self._optimizer)
        self.scaler.update()
        return loss.item()

    def train_step_plain(self, sample):
        self.zero_grad()
        loss, _, _ = self.criterion(self.model, sample)
        self.clip_grad_norm(self.cfg.clip_norm)  # planted: clip-before-backward
        loss.backward()
        self._optimizer.step()

    def backward(self, loss):
        self.scaler.scale(loss).backward()

    def clip_grad_norm(self, clip_norm):
        return torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip_norm)

    def zero_grad(self):
        self._optimizer.zero_grad()

    def valid_step(self, sample):
        self.model.eval()
        with torch.no_grad():
            loss, sample_size, logging_output = self.criterion(self.model, sample)
        return loss

    def save_checkpoint(self, filename, epoch):
        state = {
            "model": self.model.state_dict(),
            "last_optimizer_state": self._optimizer.state_dict(),
            "lr_scheduler": self._lr_scheduler.state_dict(),
            "epoch": epoch,
            "rng": torch.get_rng_state(),
        }
        torch.save(state, filename)  # planted: checkpoint-without-scaler


class LabelSmoothedCriterion:
    def __call__(self, model, sample):
        net_output = model(**sample["net_input"])
        probs = net_output.softmax(-1)
        target = sample["target"].unsqueeze(-1)
        nll = -probs.gather(dim=-1, index=target).log()  # planted: log-without-epsilon
        return nll.sum(), sample["ntokens"], {}
