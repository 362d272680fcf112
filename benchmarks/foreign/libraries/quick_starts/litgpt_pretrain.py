"""LitGPT: a tiny GPT of its configuration on made tokens, with Fabric."""
import lightning as L
import torch
from litgpt.config import Config
from litgpt.model import GPT

L.seed_everything(0, verbose=False)
fabric = L.Fabric(accelerator="cpu", devices=1); fabric.launch()
net = GPT(Config(block_size=32, vocab_size=64, padded_vocab_size=64, n_layer=2, n_head=2, n_embd=32)); opt = torch.optim.AdamW(net.parameters(), 3e-3, betas=(0.9, 0.95)); net, opt = fabric.setup(net, opt)
data = fabric.setup_dataloaders(torch.utils.data.DataLoader(torch.randint(0, 64, (160, 33)), 8, shuffle=True))
for epoch in range(4):
    for i, tokens in enumerate(data):
        with fabric.no_backward_sync(net, enabled=i % 2 == 0): fabric.backward(torch.nn.functional.cross_entropy(net(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()) / 2)
        if i % 2: fabric.clip_gradients(net, opt, max_norm=1.0); opt.step(); opt.zero_grad()
    with torch.no_grad(): print(epoch, net(tokens[:, :-1]).mean().item(), flush=True)
    fabric.save("net.ckpt", {"net": net, "opt": opt, "epoch": epoch})
