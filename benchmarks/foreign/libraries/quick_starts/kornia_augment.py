"""Kornia: augmentations as modules on the batch, a small network of images, focal loss."""
import kornia.augmentation as K
import torch
from kornia.losses import FocalLoss

torch.manual_seed(0)
x = torch.rand(200, 3, 16, 16); y = (x[:, 0].mean((1, 2)) > 0.5).long()
augment = K.AugmentationSequential(K.RandomHorizontalFlip(p=0.5), K.RandomAffine(10.0, p=0.5), K.ColorJitter(0.1, 0.1, 0.1, 0.1, p=0.5), data_keys=["input"])
net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 2))
opt = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9); criterion = FocalLoss(alpha=0.5, reduction="mean")
for epoch in range(8):
    for k in torch.randperm(200).split(20):
        loss = criterion(net(augment(x[k])), y[k]); opt.zero_grad(); loss.backward(); opt.step()
    print(epoch, loss.item(), flush=True)
torch.save(net.state_dict(), "net.pt")
