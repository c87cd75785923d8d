"""Scikit-learn's handwritten digits, a small network for them, and what share of them it knows, for Accelerate."""

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader


def images_and_labels() -> tuple[Tensor, Tensor]:
    """1797 images as rows of 64 numbers between 0 and 1, and their digits."""
    data = load_digits()
    return torch.tensor(data.images, dtype=torch.float32).flatten(1) / 16, torch.tensor(data.target)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.LayerNorm(64), nn.Linear(64, 10))


def accuracy(accelerator: Accelerator, model: nn.Module, loader: DataLoader) -> float:
    """Of all processes together; what pads the last batch is cut."""
    model.eval()
    right = []
    for images, labels in loader:
        with torch.no_grad():
            found = model(images).argmax(-1)
        found, labels = accelerator.gather_for_metrics((found, labels))
        right.append((found == labels).cpu())
    model.train()
    return torch.cat(right).float().mean().item()
