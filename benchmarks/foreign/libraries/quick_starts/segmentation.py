"""segmentation_models_pytorch: a Unet on made squares, Dice loss, its metrics."""
import segmentation_models_pytorch as smp
import torch

torch.manual_seed(0)
x = torch.rand(60, 3, 32, 32); y = (x.mean(1, keepdim=True) > 0.5).float()
net = smp.Unet("resnet18", encoder_weights=None, in_channels=3, classes=1, decoder_channels=(32, 16, 8, 8, 8)); criterion = smp.losses.DiceLoss("binary", from_logits=True)
opt = torch.optim.AdamW(net.parameters(), 1e-3); schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 40)
for epoch in range(4):
    net.train()
    for k in torch.randperm(60).split(6):
        loss = criterion(net(x[k]), y[k]); opt.zero_grad(); loss.backward(); opt.step(); schedule.step()
    net.eval()
    with torch.no_grad(): tp, fp, fn, tn = smp.metrics.get_stats((net(x[:10]).sigmoid() > 0.5).long(), y[:10].long(), mode="binary")
    print(epoch, loss.item(), smp.metrics.iou_score(tp, fp, fn, tn, reduction="micro").item(), flush=True)
net.save_pretrained("net")
