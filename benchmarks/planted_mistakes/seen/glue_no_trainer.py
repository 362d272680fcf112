"""Fine-tunes a sequence classifier with accelerate, without the Trainer."""

import argparse
import math
import os

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, get_scheduler


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_name_or_path")
    parser.add_argument("--learning_rate", type=float, default=5e-5)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--num_train_epochs", type=int, default=3)
    parser.add_argument("--output_dir")
    return parser.parse_args()


def main():
    args = parse_args()
    accelerator = Accelerator()
    model = AutoModelForSequenceClassification.from_pretrained(args.model_name_or_path)
    train_dataloader = DataLoader(load("train"), shuffle=True, batch_size=8)
    eval_dataloader = DataLoader(load("validation"), batch_size=8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    lr_scheduler = get_scheduler("linear", optimizer=optimizer, num_training_steps=1000)
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
    )
    completed_steps = 0
    for epoch in range(args.num_train_epochs):
        model.train()
        total_loss = 0
        for step, batch in enumerate(train_dataloader):
            outputs = model(**batch)
            loss = outputs.loss
            total_loss += loss  # planted: loss-keeps-graph
            accelerator.backward(loss)  # planted: accumulation-without-division
            if step % args.gradient_accumulation_steps == 0 or step == len(train_dataloader) - 1:
                lr_scheduler.step()  # planted: scheduler-before-optimizer
                optimizer.step()
                optimizer.zero_grad()
                completed_steps += 1

        model.eval()
        for step, batch in enumerate(eval_dataloader):
            outputs = model(**batch)  # planted: eval-with-gradients
            predictions = outputs.logits.argmax(dim=-1)
            metric.add_batch(predictions=accelerator.gather(predictions), references=batch["labels"])
        print(epoch, metric.compute())


def train_regression(args, accelerator, model, optimizer, loader):
    for epoch in range(args.num_train_epochs):
        model.train()
        for batch in loader:
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.zero_grad()  # planted: zero-grad-before-step
            optimizer.step()


if __name__ == "__main__":
    main()
