"""Fine-tunes a language model: once with accelerate, once with Fabric."""

import torch
from accelerate import Accelerator
from lightning.fabric import Fabric
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, get_scheduler


def training_function(config, dataset):
    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=config["accumulate"])
    model = AutoModelForCausalLM.from_pretrained(config["model"])
    optim = torch.optim.AdamW(params=model.parameters(), lr=config["lr"])
    loader = DataLoader(dataset, shuffle=True, batch_size=config["batch_size"])
    lr_scheduler = get_scheduler("cosine", optim, 100, config["epochs"] * len(loader))
    model, optim, loader, lr_scheduler = accelerator.prepare(model, optim, loader, lr_scheduler)
    for epoch in range(config["epochs"]):
        model.train()
        for batch in loader:
            with accelerator.accumulate(model):
                outputs = model(**batch)
                loss = outputs.loss
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)  # planted: clip-before-backward
                accelerator.backward(loss)
                optim.step()
                lr_scheduler.step()
                optim.zero_grad()


def fit(fabric, model, optimizer, loader, max_iters):
    iterator = iter(loader)
    for iter_num in range(max_iters):
        ids, targets = next(iterator)
        logits = model(ids)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        fabric.backward(loss)
        optimizer.step()
        fabric.clip_gradients(model, optimizer, max_norm=1.0)  # planted: clip-after-step
        optimizer.zero_grad()


def fit_adapter(fabric, model, optimizer, loader, max_iters, accumulation_iters):
    for iter_num, (ids, targets) in enumerate(loader):
        is_accumulating = (iter_num + 1) % accumulation_iters != 0
        with fabric.no_backward_sync(model, enabled=is_accumulating):
            logits = model(ids)
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
            fabric.backward(loss)  # planted: accumulation-without-division
        if not is_accumulating:
            optimizer.step()
            optimizer.zero_grad()


def main(config, dataset):
    training_function(config, dataset)
    fabric = Fabric(precision="bf16-mixed")
    model = AutoModelForCausalLM.from_pretrained(config["model"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(DataLoader(dataset, batch_size=config["batch_size"]))
    fit(fabric, model, optimizer, loader, config["iters"])
    fit_adapter(fabric, model, optimizer, loader, config["iters"], config["accumulate"])
