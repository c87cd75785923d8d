"""Small models follow the CPU's losses step by step, run natively, and compile their step twice at most."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torch_xla
import torch_xla.debug.metrics as met


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(self.norm(x)).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return x + self.out(seen.transpose(1, 2).reshape(x.shape))


class TiedLanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 16)
        self.attention = Attention()
        self.head = nn.Linear(16, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.attention(self.embedding(tokens))).flatten(0, 1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 8, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def mlp() -> tuple[nn.Module, Tensor, Tensor]:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 5))
    return model, torch.randn(12, 8), torch.randint(5, (12,))


def convolutions() -> tuple[nn.Module, Tensor, Tensor]:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 8, 3), nn.GELU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip
    return model, torch.randn(6, 1, 8, 8), torch.randint(5, (6,))


def encoder() -> tuple[nn.Module, Tensor, Tensor]:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Flatten(), nn.Linear(64, 5))
    return model, torch.randn(3, 4, 16), torch.randint(5, (3,))


def language_model() -> tuple[nn.Module, Tensor, Tensor]:
    return TiedLanguageModel(), torch.randint(11, (3, 6)), torch.randint(11, (18,))


def recurrent() -> tuple[nn.Module, Tensor, Tensor]:
    return Recurrent(), torch.randn(3, 5, 4), torch.randint(5, (3,))


READ = "aten::_local_scalar_dense"  # what `.item()` calls

MODELS = (mlp, convolutions, encoder, language_model, recurrent)


def losses(build: Callable[[], tuple[nn.Module, Tensor, Tensor]], device: str, steps: int) -> list[float]:
    torch.manual_seed(0)
    model, x, y = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    model.to(device)
    x, y = x.to(device), y.to(device)
    seen = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        torch_xla.sync()
        seen.append(loss.detach())
    return [loss.item() for loss in seen]


@pytest.mark.parametrize(
    "build",
    [pytest.param(m, marks=[pytest.mark.slow] * (m is convolutions)) for m in MODELS],
    ids=lambda build: build.__name__,
)
def test_a_model_follows_the_losses_of_the_cpu(build: Callable[[], tuple[nn.Module, Tensor, Tensor]]) -> None:
    expected = losses(build, "cpu", 8)
    met.clear_all()
    assert losses(build, "xla", 8) == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert set(met.executed_fallback_ops()) <= {READ}
    # The first step makes the optimizer's state, the second is the step of all that follow: the learning rate and the
    # bias corrections of Adam change every time.
    assert met.counter_value("UncachedCompile") <= 3
    assert expected[-1] < expected[0]
