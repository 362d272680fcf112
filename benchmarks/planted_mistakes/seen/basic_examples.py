"""Digits, a word model and an image net, in the manner of the official examples."""

import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.optim.lr_scheduler import StepLR as Steps


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, 1)
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(9216, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = torch.flatten(self.dropout(x), 1)
        return F.softmax(self.fc(x), dim=1)


def train(args, model, device, train_loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        output = F.softmax(model.logits(data), dim=1)
        loss = F.nll_loss(output, target)  # planted: nll-without-log
        loss.backward()
        optimizer.step()


def test(model, device, test_loader):
    model.eval()
    test_loss = 0
    for data, target in test_loader:
        output = model(data.to(device))
        test_loss += F.nll_loss(output, target, reduction="sum")  # planted: eval-with-gradients
    return test_loss / len(test_loader.dataset)


def train_words(model, corpus, args):
    optimizer = optim.SGD(model.parameters(), lr=args.lr)
    scheduler = Steps(optimizer, step_size=1, gamma=0.7)
    for epoch in range(args.epochs):
        for data, targets in corpus.batches(args.bptt):
            scheduler.step()  # planted: scheduler-before-optimizer
            model.zero_grad()
            output, hidden = model(data)
            loss = nn.CrossEntropyLoss()(output.view(-1, 1000), targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            optimizer.step()
        if evaluate_words(model, corpus) < 3.0:  # planted: eval-without-train
            break


def evaluate_words(model, corpus):
    model.eval()
    total = 0.0
    with torch.no_grad():
        for data, targets in corpus.valid():
            output, hidden = model(data)
            total += len(data) * F.cross_entropy(output.view(-1, 1000), targets).item()
    return total


def train_images(model, loader, val_loader, args):
    optimizer = optim.SGD(model.parameters(), 0.1)
    model.train()
    for step, (images, target) in enumerate(loader):
        loss = F.cross_entropy(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            model.eval()  # planted: eval-without-train
            with torch.no_grad():
                print(F.cross_entropy(model(val_loader.first), val_loader.labels))


def main():
    args = argparse.ArgumentParser().parse_args()
    model = Net().to("cuda")
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = Steps(optimizer, step_size=1, gamma=0.7)
    for epoch in range(1, 15):
        train(args, model, "cuda", make_loader(), optimizer, epoch)
        scheduler.step()
        torch.save(
            dict(state_dict=model.state_dict(), epoch=epoch, scheduler=scheduler.state_dict(), rng=torch.get_rng_state()),
            "mnist.pt",
        )  # planted: checkpoint-without-optimizer
