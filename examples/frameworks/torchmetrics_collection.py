"""torchmetrics: a collection of metrics on the device, updated in every step, on scikit-learn's handwritten digits.

    python examples/frameworks/torchmetrics_collection.py

The metrics' states stay on the device; reading them, once at the end, is the only time that anybody waits.
"""

import torch
import torch.nn.functional as F
from beside_cpu import Steps, compare
from sklearn.datasets import load_digits
from torch import nn
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassCalibrationError,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)

import torch_xla

BATCH = 64


def metrics() -> MetricCollection:
    return MetricCollection(
        {
            "accuracy": MulticlassAccuracy(10, validate_args=False),
            "F1": MulticlassF1Score(10, average="macro", validate_args=False),
            "area under the curve": MulticlassAUROC(10, thresholds=50, validate_args=False),
            "confusion": MulticlassConfusionMatrix(10, normalize="true", validate_args=False),
            "calibration": MulticlassCalibrationError(10, n_bins=10, validate_args=False),
        }
    )


def train(device: str, steps: Steps) -> dict[str, float]:
    data = load_digits()
    images, labels = torch.tensor(data.images, dtype=torch.float32).flatten(1) / 16, torch.tensor(data.target)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    measured, mean_loss = metrics().to(device), MeanMetric(nan_strategy="disable").to(device)
    for step in range(20):
        rows = slice(step * BATCH, (step + 1) * BATCH)
        x, y = images[rows].to(device), labels[rows].to(device)
        found = model(x)
        loss = F.cross_entropy(found, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            measured.update(found.softmax(-1), y)
            mean_loss.update(loss)
        torch_xla.sync()
        steps.ended(loss)
    found = {name: value.cpu() for name, value in measured.compute().items()}
    found["confusion"] = found["confusion"].diagonal().mean()
    return {"mean loss": mean_loss.compute().item(), **{name: value.item() for name, value in found.items()}}


if __name__ == "__main__":
    compare(train, tolerance=1e-4)
