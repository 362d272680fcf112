"""Lightning modules with manual optimization, and one with automatic."""

import lightning.pytorch as pl
import torch
from torch import nn
from torch.nn import functional as tnf


class GAN(pl.LightningModule):
    def __init__(self, latent_dim=100):
        super().__init__()
        self.automatic_optimization = False
        self.generator = Generator(latent_dim)
        self.discriminator = Discriminator()

    def adversarial_loss(self, y_hat, y):
        y_hat = torch.sigmoid(y_hat)
        return tnf.binary_cross_entropy_with_logits(y_hat, y)  # planted: sigmoid-before-bce-with-logits

    def training_step(self, batch):
        imgs, _ = batch
        optimizer_g, optimizer_d = self.optimizers()
        z = torch.randn(imgs.shape[0], 100, device=self.device)

        self.toggle_optimizer(optimizer_g)
        g_loss = self.adversarial_loss(self.discriminator(self.generator(z)), torch.ones(len(z), 1))
        self.manual_backward(g_loss)
        optimizer_g.step()
        self.clip_gradients(optimizer_g, gradient_clip_val=0.5)  # planted: clip-after-step
        optimizer_g.zero_grad()
        self.untoggle_optimizer(optimizer_g)

        d_loss = self.adversarial_loss(self.discriminator(imgs), torch.ones(len(imgs), 1))
        optimizer_d.zero_grad()
        self.manual_backward(d_loss)
        optimizer_d.step()

    def configure_optimizers(self):
        opt_g = torch.optim.Adam(self.generator.parameters(), lr=2e-4)
        opt_d = torch.optim.Adam(self.discriminator.parameters(), lr=2e-4)
        return [opt_g, opt_d], []


class Regressor(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.net = nn.Linear(8, 1)

    def training_step(self, batch):
        x, y = batch
        opt = self.optimizers()
        sch = self.lr_schedulers()
        loss = tnf.mse_loss(self.net(x), y)
        self.manual_backward(loss)
        opt.zero_grad()  # planted: zero-grad-before-step
        opt.step()
        sch.step()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Classifier(pl.LightningModule):
    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone
        self.head = nn.Sequential(nn.Linear(512, 10), nn.Softmax(dim=1))
        self.criterion = nn.CrossEntropyLoss()

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self.head(self.backbone(x))
        loss = self.criterion(logits, y)  # planted: softmax-before-cross-entropy
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    torch.autograd.set_detect_anomaly(True)  # planted: anomaly-detection-on
    trainer = pl.Trainer(max_epochs=5)
    trainer.fit(Classifier(make_backbone()), make_loader())
