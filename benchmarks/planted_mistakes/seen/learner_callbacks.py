"""A learner whose loop is made of small methods and callbacks."""

from functools import partial

import torch
from torch import nn, optim


class Callback:
    order = 0

    def before_batch(self, learn):
        pass


class MixedPrecision(Callback):
    order = 10

    def before_fit(self, learn):
        learn.scaler = torch.GradScaler("cuda")


class Learner:
    def __init__(self, model, dls, loss_func, lr=0.1, cbs=(), opt_func=optim.SGD):
        self.model, self.dls, self.loss_func, self.lr = model, dls, loss_func, lr
        self.cbs, self.opt_func = cbs, opt_func

    def predict(self):
        self.preds = self.model(self.batch[0])

    def get_loss(self):
        self.loss = self.loss_func(self.preds, self.batch[1])

    def backward(self):
        self.loss.backward()

    def step(self):
        self.opt.step()

    def zero_grad(self):
        self.opt.zero_grad()

    def one_batch(self):
        self.predict()
        self.get_loss()
        self.backward()
        self.step()  # planted: missing-zero-grad

    def one_epoch(self, train):
        self.model.train(train)
        dl = self.dls.train if train else self.dls.valid
        for self.num, self.batch in enumerate(dl):
            self.one_batch()

    def fit(self, n_epochs):
        self.opt = self.opt_func(self.model.parameters(), self.lr)
        for self.epoch in range(n_epochs):
            self.one_epoch(True)


class ScaledLearner(Learner):
    def setup(self):
        self.opt = optim.AdamW(self.model.parameters(), self.lr)
        self.scaler = torch.GradScaler("cuda")
        self.sched = optim.lr_scheduler.OneCycleLR(self.opt, max_lr=0.1, total_steps=1000)

    def fit(self, n_epochs):
        self.setup()
        for epoch in range(n_epochs):
            self.model.train()
            running = 0.0
            for xb, yb in self.dls.train:
                with torch.autocast("cuda"):
                    preds = self.model(xb)
                loss = self.loss_func(preds, yb)  # planted: loss-outside-autocast
                self.scaler.scale(loss).backward()
                self.opt.step()  # planted: step-bypasses-scaler
                self.opt.zero_grad()
                self.sched.step()
                running = running + loss  # planted: loss-keeps-graph
            print(epoch, running / len(self.dls.train))
            self.validate()

    def validate(self):
        self.model.eval()
        for xb, yb in self.dls.valid:
            print(self.loss_func(self.model(xb), yb).item())  # planted: eval-with-gradients
