"""Small networks of kinds that are trained on TPUs and GPUs, beside those of `benchmarks.models`."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torch_xla.experimental.scan import scan


class Images(nn.Module):
    """Convolutions with normalisation and a shortcut, on images of shape (batch, 3, height, width)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2))
        self.second = nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.head((x + self.second(x)).mean((2, 3)))


class UNet(nn.Module):
    """A U-Net of two levels: group norms, a transposed convolution, attention at the bottom, and a shortcut."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(8, 2 * width)
        self.attention = nn.MultiheadAttention(2 * width, 4, batch_first=True)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.leave = nn.Conv2d(2 * width, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        high = F.silu(self.enter(x))
        low = F.silu(self.norm(self.down(high)))
        rows = low.flatten(2).transpose(1, 2)
        attended = rows + self.attention(rows, rows, rows, need_weights=False)[0]
        low = attended.transpose(1, 2).reshape(low.shape)
        return self.leave(torch.cat([high, self.up(low)], 1))


class Mixture(nn.Module):
    """A mixture of experts, as in Mixtral: the two best of four for each token, by grouped products."""

    def __init__(self, words: int = 512, width: int = 128, hidden: int = 256, experts: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, hidden) / width**0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, width) / hidden**0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens).flatten(0, 1)
        weights, chosen = self.router(x).softmax(-1).topk(2)
        order = chosen.flatten().argsort()
        ends = F.one_hot(chosen.flatten(), len(self.up)).sum(0).cumsum(0).to(torch.int32)
        hidden = F.silu(F.grouped_mm(x[order // 2], self.up, offs=ends))
        found = F.grouped_mm(hidden, self.down, offs=ends) * weights.flatten()[order, None]
        return torch.zeros_like(x).index_add(0, order // 2, found)


class StateSpace(nn.Module):
    """A layer with a recurrence over the sequence, as in Mamba: its decay depends on the input; by `scan`."""

    def __init__(self, words: int = 512, width: int = 128) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.enter = nn.Linear(width, 3 * width)
        self.leave = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        value, gate, decay = self.enter(self.words(tokens)).transpose(0, 1).chunk(3, -1)

        def step(state: Tensor, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            state = inputs[0] * state + inputs[1]
            return state, state

        _, states = scan(step, torch.zeros_like(value[0]), (decay.sigmoid(), value))
        return self.leave((states * F.silu(gate)).transpose(0, 1))
