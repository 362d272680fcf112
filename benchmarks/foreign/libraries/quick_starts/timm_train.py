"""timm: a small ResNet, mixup, its optimizer and schedule factories, an averaged model, its saver."""
import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV2, random_seed

random_seed(0)
x = torch.rand(120, 3, 32, 32); y = torch.randint(0, 4, (120,))
net = timm.create_model("resnet10t", pretrained=False, num_classes=4); mixup = Mixup(mixup_alpha=0.2, cutmix_alpha=1.0, num_classes=4); ema = ModelEmaV2(net, decay=0.9)
opt = create_optimizer_v2(net, opt="lamb", lr=5e-3, weight_decay=0.02); schedule = CosineLRScheduler(opt, t_initial=5, warmup_t=1, warmup_lr_init=1e-4); criterion = SoftTargetCrossEntropy()
for epoch in range(5):
    for k in torch.randperm(120).split(12):
        a, b = mixup(x[k].clone(), y[k].clone()); loss = criterion(net(a), b); opt.zero_grad(); loss.backward(); opt.step(); ema.update(net)
    schedule.step(epoch + 1); print(epoch, loss.item(), opt.param_groups[0]["lr"], flush=True)
torch.save({"net": net.state_dict(), "ema": ema.module.state_dict()}, "net.pt")
