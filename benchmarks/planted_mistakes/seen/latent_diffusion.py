"""Fine-tunes the denoiser of a latent diffusion model."""

import math

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from torch.nn.utils import clip_grad_norm_


class CrossAttention(torch.nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.to_q = torch.nn.Linear(dim, dim)
        self.to_k = torch.nn.Linear(dim, dim)
        self.scale = dim**-0.5

    def forward(self, x, context):
        q = self.to_q(x).to(torch.bfloat16)
        k = self.to_k(context).to(torch.bfloat16)
        sim = torch.einsum("b i d, b j d -> b i j", q, k) * self.scale
        attn = sim.softmax(dim=-1)  # planted: softmax-without-dtype
        return attn


def main(args):
    vae = AutoencoderKL.from_pretrained(args.model)
    unet = UNet2DConditionModel.from_pretrained(args.model)
    noise_scheduler = DDPMScheduler.from_pretrained(args.model)
    weight_dtype = torch.bfloat16
    vae.requires_grad_(False)
    vae.to("cuda", dtype=weight_dtype)
    unet.to("cuda", dtype=weight_dtype)  # planted: bfloat16-model-trained
    unet.train()
    optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-4)
    lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 500))
    global_step = 0
    for epoch in range(args.num_train_epochs):
        for step, batch in enumerate(make_loader(args)):
            with torch.no_grad():
                latents = vae.encode(batch["pixel_values"].to(weight_dtype)).latent_dist.sample()
            noise = torch.randn_like(latents)
            timesteps = torch.randint(0, 1000, (len(latents),), device=latents.device)
            model_pred = unet(noise_scheduler.add_noise(latents, noise, timesteps), timesteps).sample
            loss = ((model_pred.bfloat16() - noise.bfloat16()) ** 2).mean()  # planted: low-precision-reduction
            loss.backward()
            optimizer.step()
            clip_grad_norm_(unet.parameters(), 1.0)  # planted: clip-after-step
            lr_scheduler.step()
            optimizer.zero_grad()
            global_step += 1
            if global_step % 500 == 0:
                save_progress(unet, optimizer, global_step, args)


def save_progress(unet, optimizer, global_step, args):
    torch.save(
        {
            "unet": unet.state_dict(),
            "optimizer": optimizer.state_dict(),
            "global_step": global_step,
        },
        f"{args.output_dir}/{global_step}.pt",
    )  # planted: checkpoint-without-rng # also: checkpoint-without-scheduler


def snr_weights(noise_scheduler, timesteps):
    alphas = noise_scheduler.alphas_cumprod[timesteps]
    return alphas / (1 - alphas)
