"""MONAI: dictionary transforms with random ones, a cached data set, MetaTensors, a UNet, sliding windows in its validation."""
import torch
from monai.data import CacheDataset, DataLoader
from monai.inferers import sliding_window_inference
from monai.losses import DiceLoss
from monai.metrics import DiceMetric
from monai.networks.nets import UNet
from monai.transforms import (
    Compose,
    EnsureChannelFirstd,
    RandFlipd,
    RandGaussianNoised,
    ScaleIntensityd,
    ToTensord,
)
from monai.utils import set_determinism

set_determinism(0)
data = [{"image": (i := torch.rand(16, 16)).numpy(), "label": (i > 0.5).float().numpy()} for _ in range(40)]
transforms = Compose([EnsureChannelFirstd(["image", "label"], channel_dim="no_channel"), ScaleIntensityd("image"), RandFlipd(["image", "label"], prob=0.5, spatial_axis=0), RandGaussianNoised("image", prob=0.5), ToTensord(["image", "label"])])
train = DataLoader(CacheDataset(data[:32], transforms, progress=False), batch_size=4, shuffle=True); valid = DataLoader(CacheDataset(data[32:], transforms, progress=False), batch_size=4)
net = UNet(2, 1, 1, (8, 16), (2,), num_res_units=1); criterion = DiceLoss(sigmoid=True); opt = torch.optim.Adam(net.parameters(), 1e-2); metric = DiceMetric()
for epoch in range(6):
    net.train()
    for batch in train:
        opt.zero_grad(); loss = criterion(net(batch["image"]), batch["label"]); loss.backward(); opt.step()
    net.eval()
    with torch.no_grad():
        for batch in valid: metric((sliding_window_inference(batch["image"], (8, 8), 4, net).sigmoid() > 0.5).float(), batch["label"])
    print(epoch, loss.item(), metric.aggregate().item(), flush=True); metric.reset()
torch.save(net.state_dict(), "net.pt")
