"""Wasserstein GAN with a gradient penalty, then a plain GAN on the same images."""

import torch
import torch.autograd as autograd
import torch.nn as nn
from torch.autograd import Variable
from torch.optim import Adam


class Discriminator(nn.Module):
    def __init__(self, channels, features):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(channels, features, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(features, features * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(features * 2),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(features * 2, 1, 4, 1, 0, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, x):
        return self.main(x).view(-1)


class WGAN:
    def __init__(self, generator, critic, latent, weight=10.0):
        self.G = generator
        self.D = critic
        self.latent = latent
        self.gp_weight = weight
        self.g_opt = Adam(self.G.parameters(), lr=1e-4, betas=(0.0, 0.9))
        self.d_opt = Adam(self.D.parameters(), lr=1e-4, betas=(0.0, 0.9))

    def _gradient_penalty(self, real, fake):
        alpha = torch.rand(real.size(0), 1, 1, 1, device=real.device).expand_as(real)
        mixed = Variable(alpha * real.data + (1 - alpha) * fake.data, requires_grad=True)
        score = self.D(mixed)
        gradients = autograd.grad(
            outputs=score, inputs=mixed, grad_outputs=torch.ones_like(score), create_graph=True
        )[0]
        gradients = gradients.view(real.size(0), -1)
        norms = torch.sqrt(torch.sum(gradients ** 2, dim=1))  # planted: sqrt-at-zero
        return self.gp_weight * ((norms - 1) ** 2).mean()

    def _critic_iteration(self, real):
        noise = torch.randn(real.size(0), self.latent, device=real.device)
        fake = self.G(noise)
        optimizer = self.d_opt
        d_loss = self.D(fake.detach()).mean() - self.D(real).mean()
        d_loss = d_loss + self._gradient_penalty(real, fake)
        d_loss.backward()
        optimizer.zero_grad()  # planted: zero-grad-before-step
        optimizer.step()
        return d_loss.item()

    def _generator_iteration(self, n, device):
        self.g_opt.zero_grad()
        loss = -self.D(self.G(torch.randn(n, self.latent, device=device))).mean()
        loss.backward()
        self.g_opt.step()
        return loss.item()

    def train_epoch(self, loader, device, critic_iterations=5):
        for i, (real, _) in enumerate(loader):
            real = real.to(device)
            self._critic_iteration(real)
            if i % critic_iterations == 0:
                self._generator_iteration(real.size(0), device)


def train_plain_gan(generator, loader, opt, device):
    netD = Discriminator(opt.nc, opt.ndf).to(device)
    criterion = nn.BCEWithLogitsLoss()
    optimizerD = Adam(netD.parameters(), lr=opt.lr, betas=(opt.beta1, 0.999))
    optimizerG = Adam(generator.parameters(), lr=opt.lr, betas=(opt.beta1, 0.999))
    for epoch in range(opt.niter):
        for data, _ in loader:
            netD.zero_grad()
            real = data.to(device)
            label = torch.full((real.size(0),), 1.0, device=device)
            errD_real = criterion(netD(real), label)  # planted: sigmoid-before-bce-with-logits
            errD_real.backward()
            fake = generator(torch.randn(real.size(0), opt.nz, 1, 1, device=device))
            label.fill_(0.0)
            errD_fake = criterion(netD(fake.detach()), label)  # also: sigmoid-before-bce-with-logits
            errD_fake.backward()
            optimizerD.step()
            generator.zero_grad()
            label.fill_(1.0)
            errG = criterion(netD(fake), label)  # also: sigmoid-before-bce-with-logits
            errG.backward()
            optimizerG.step()
