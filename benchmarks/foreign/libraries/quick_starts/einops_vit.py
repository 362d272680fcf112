"""einops: a vision transformer with rearrange layers, dropout, label smoothing, gradient clipping."""
import torch
from einops import rearrange
from einops.layers.torch import Rearrange, Reduce

torch.manual_seed(0)
class Block(torch.nn.Module):
    def __init__(self, d=32, h=4):
        super().__init__(); self.h = h; self.a, self.b = torch.nn.LayerNorm(d), torch.nn.LayerNorm(d); self.qkv, self.out = torch.nn.Linear(d, 3 * d), torch.nn.Linear(d, d)
        self.ff = torch.nn.Sequential(torch.nn.Linear(d, 2 * d), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(2 * d, d))
    def forward(self, x):
        q, k, v = rearrange(self.qkv(self.a(x)), "b n (t h d) -> t b h n d", t=3, h=self.h)
        x = x + self.out(rearrange(torch.nn.functional.scaled_dot_product_attention(q, k, v), "b h n d -> b n (h d)")); return x + self.ff(self.b(x))
net = torch.nn.Sequential(Rearrange("b c (h p) (w q) -> b (h w) (c p q)", p=4, q=4), torch.nn.Linear(48, 32), Block(), Block(), Reduce("b n d -> b d", "mean"), torch.nn.Linear(32, 4))
x = torch.rand(160, 3, 16, 16); y = torch.randint(0, 4, (160,)); opt = torch.optim.AdamW(net.parameters(), 1e-3)
for epoch in range(6):
    for k in torch.randperm(160).split(16):
        loss = torch.nn.functional.cross_entropy(net(x[k]), y[k], label_smoothing=0.1); opt.zero_grad(); loss.backward(); torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0); opt.step()
    print(epoch, loss.item(), flush=True)
torch.save(net.state_dict(), "net.pt")
