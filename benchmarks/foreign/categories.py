"""What kind of training each public script is: the rows of the short table."""

from __future__ import annotations

from collections.abc import Callable

_BEGINNINGS = {
    "Lightning, Fabric": ("Lightning", "Fabric"),
    "Hugging Face Trainer, TRL": ("TRL", "HF"),
    "Accelerate": ("Accelerate",),
    "Ignite": ("ignite",),
    "timm, ImageNet, torchvision": ("timm", "examples imagenet", "torchvision"),
    "graphs": ("PyG", "GCN", "e3nn"),
    "reinforcement learning": (
        *("cleanrl", "examples actor", "examples REINFORCE", "SB3", "minimalRL"),
    ),
    "torchtune": ("torchtune",),
    "language models": (
        *("nanoGPT", "minGPT", "makemore", "examples word", "x-transformers", "grokking"),
    ),
    "audio": ("audio",),
    "GAN": ("PyTorch-GAN", "examples dcgan"),
    "self-supervised, metric learning": ("self-supervised", "examples siamese", "metric"),
    "meta-learning": ("functorch", "learn2learn", "MAML"),
    "DP-SGD": ("opacus",),
    "federated": ("federated",),
    "PINN, neural ODE": ("deepxde", "torchdiffeq", "PINN"),
    "diffusion, flows": ("tiny-diffusion", "diffusion", "flows"),
    "Pyro": ("pyro",),
    "skorch": ("skorch",),
}
OTHERS, TWO_RANKS = "plain loops", "two ranks"


def category_of(name: str) -> str:
    """Returns the category of a script of the catalogue, by its name's beginning."""
    if name.endswith("2 ranks"):
        return TWO_RANKS
    is_of: Callable[[tuple[str, ...]], bool] = name.startswith
    return next((kind for kind, words in _BEGINNINGS.items() if is_of(words)), OTHERS)


def in_order(category: str) -> int:
    """Where a category stands in a table."""
    return [*_BEGINNINGS, OTHERS, TWO_RANKS].index(category)
