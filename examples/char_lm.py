"""Trains a small character-level transformer on the help texts that come with Python.

An ordinary training script: it knows nothing of a supervisor. Try it alone, then supervised:

    python examples/char_lm.py
    supervisor run examples/char_lm.py
"""

import argparse
import math
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

CONTEXT = 64


class Windows(Dataset):
    """Every place of the text where a window of CONTEXT characters and its successor fit."""

    def __init__(self, tokens):
        self.tokens = tokens

    def __len__(self):
        return (len(self.tokens) - 1) // CONTEXT

    def __getitem__(self, index):
        window = self.tokens[index * CONTEXT : (index + 1) * CONTEXT + 1]
        return window[:-1], window[1:]


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.05)
        )

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm_attention(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm_mlp(x))


class CharTransformer(nn.Module):
    def __init__(self, vocabulary, width=64, heads=4, depth=2):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(0.02 * torch.randn(CONTEXT, width))
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.token(tokens) + self.position[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def load_text():
    text = "\n".join(topics[name] for name in sorted(topics))
    characters = sorted(set(text))
    number = {character: index for index, character in enumerate(characters)}
    return torch.tensor([number[character] for character in text]), len(characters)


def loss_of(model, inputs, targets):
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


@torch.no_grad()
def validate(model, loader):
    model.eval()
    losses = [loss_of(model, inputs, targets).item() for inputs, targets in loader]
    model.train()
    return sum(losses) / len(losses)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--out", help="where to save the trained weights")
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    torch.set_num_threads(1)  # so small a model gains nothing from a second one
    tokens, vocabulary = load_text()
    split = int(0.95 * len(tokens))
    train = DataLoader(Windows(tokens[:split]), options.batch_size, shuffle=True, drop_last=True)
    valid = DataLoader(Windows(tokens[split : split + 64 * 128]), batch_size=64)

    model = CharTransformer(vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=0.01)
    warm_up = max(1, options.steps // 10)

    def factor(step):
        if step < warm_up:
            return (step + 1) / warm_up
        return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm_up) / (options.steps - warm_up)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)

    step = 0
    while step < options.steps:
        for inputs, targets in train:
            loss = loss_of(model, inputs, targets)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            if step % 50 == 0:
                print(f"step {step:4d}  loss {loss.item():.4f}", flush=True)
            step += 1
            if step == options.steps:
                break

    print(f"final validation loss {validate(model, valid):.4f}", flush=True)
    if options.out:
        torch.save(model.state_dict(), options.out)


if __name__ == "__main__":
    main()
