"""Text to speech: one trainer for the acoustic model, a function for the vocoder."""

import os
import time

import torch
from torch.amp import autocast
from torch.cuda.amp import GradScaler

from data_utils import TextMelLoader
from distributed import apply_gradient_allreduce
from loss_function import Tacotron2Loss
from model import Tacotron2, Vocoder


def load_model(hparams):
    model = Tacotron2(hparams).cuda()
    if hparams.fp16_run:
        model.decoder.attention_layer.half()  # planted: half-model-trained
    if hparams.distributed_run:
        model = apply_gradient_allreduce(model)
    return model


def train(output_directory, hparams):
    model = load_model(hparams)
    learning_rate = hparams.learning_rate
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate, weight_decay=hparams.weight_decay)
    criterion = Tacotron2Loss()
    train_loader = TextMelLoader(hparams.training_files, hparams)
    model.train()
    iteration = 0
    for epoch in range(hparams.epochs):
        for batch in train_loader:
            start = time.perf_counter()
            model.zero_grad()
            x, y = model.parse_batch(batch)
            y_pred = model(x)
            loss = criterion(y_pred, y)
            loss.backward()
            grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), hparams.grad_clip_thresh)
            optimizer.step()
            print(iteration, loss.item(), grad_norm, time.perf_counter() - start)
            iteration += 1


def update(vocoder, mels, audio, optimizer, scaler):
    with autocast("cuda"):
        loss = vocoder(mels, audio)
    scaler.scale(loss).backward()
    optimizer.step()  # planted: step-bypasses-scaler
    scaler.update()
    return loss.item()


def train_vocoder(loader, hparams):
    vocoder = Vocoder(hparams).cuda()
    opt = torch.optim.Adam(vocoder.parameters(), lr=hparams.learning_rate)
    grad_scaler = GradScaler()
    for epoch in range(hparams.epochs):
        for mels, audio in loader:
            opt.zero_grad()
            update(vocoder, mels.cuda(), audio.cuda(), opt, grad_scaler)


class DurationTrainer:
    def __init__(self, net, hparams):
        self.dtype = torch.bfloat16
        self.net = net.to("cuda", dtype=self.dtype)  # planted: bfloat16-model-trained
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=hparams.learning_rate)

    def fit(self, batches):
        for text, durations in batches:
            self.optimizer.zero_grad()
            loss = (self.net(text) - durations).abs().mean()
            loss.backward()
            self.optimizer.step()
