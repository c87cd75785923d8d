"""The models that are measured, in plain `torch.nn`, each with a batch of data: `WORKLOADS[name]`."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Mlp(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


class Encoder(nn.Module):
    """PyTorch's own encoder with a classifier on the mean: many small operations, so the host's cost shows."""

    def __init__(self, dropout: float, layers: int = 6) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.classifier = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.encoder(x).mean(1))


class GptBlock(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp_in = nn.Linear(width, 4 * width)
        self.mlp_out = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        dropout = self.dropout if self.training else 0.0
        qkv = self.qkv(self.attention_norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        x = x + F.dropout(self.attention_out(seen.transpose(1, 2).reshape(x.shape)), dropout)
        hidden = F.gelu(self.mlp_in(self.mlp_norm(x)), approximate="tanh")
        return x + F.dropout(self.mlp_out(hidden), dropout)


class Gpt2(nn.Module):
    """Decoder with learned positions and tied embeddings, as GPT-2 has them."""

    def __init__(
        self,
        dropout: float,
        layers: int = 6,
        width: int = 384,
        heads: int = 6,
        vocabulary: int = 1000,
        length: int = 128,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(length, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(GptBlock(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.embedding(tokens) + self.position(positions))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).flatten(0, 1)


class Bert(nn.Module):
    """Encoder with token, position and segment embeddings, and a head that names the masked words."""

    def __init__(
        self, dropout: float, layers: int = 4, width: int = 256, vocabulary: int = 1000, length: int = 128
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.randn(length, width) * 0.02)
        self.segment = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=dropout, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, vocabulary))

    def forward(self, tokens: Tensor) -> Tensor:
        segments = torch.zeros_like(tokens)
        x = self.embedding(tokens) + self.position + self.segment(segments)
        return self.head(self.encoder(self.dropout(self.norm(x)))).flatten(0, 1)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """The input of a block in the shape of its result, to which it is added."""
    if stride == 1 and inputs == outputs:
        return nn.Sequential()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


def _around_blocks(blocks: list[nn.Module], features: int, classes: int) -> list[nn.Module]:
    """The layers of a ResNet: a strided stem, the blocks, and a head on the mean of each feature."""
    stem = [
        nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    return [*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, classes)]


class BasicBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(hidden)) + self.shortcut(x), inplace=True)


class ResNet(nn.Sequential):
    """ResNet-18: a strided stem, then basic blocks 2-2-2-2."""

    def __init__(self) -> None:
        blocks: list[nn.Module] = []
        inputs = 64
        for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            blocks += [BasicBlock(inputs, outputs, stride), BasicBlock(outputs, outputs, 1)]
            inputs = outputs
        super().__init__(*_around_blocks(blocks, 512, 10))


class Bottleneck(nn.Module):
    """Three convolutions; the middle one has the stride."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(outputs)
        self.shortcut = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.norm1(self.conv1(x)), inplace=True)
        hidden = F.relu(self.norm2(self.conv2(hidden)), inplace=True)
        return F.relu(self.norm3(self.conv3(hidden)) + self.shortcut(x), inplace=True)


class ResNet50(nn.Sequential):
    """ResNet-50: the stem of `ResNet`, then bottlenecks 3-4-6-3."""

    def __init__(self) -> None:
        blocks: list[nn.Module] = []
        inputs = 64
        for width, stride, count in ((64, 1, 3), (128, 2, 4), (256, 2, 6), (512, 2, 3)):
            for index in range(count):
                blocks.append(Bottleneck(inputs, width, stride if index == 0 else 1))
                inputs = 4 * width
        super().__init__(*_around_blocks(blocks, 2048, 1000))


class Vit(nn.Module):
    """Images as 64 patches of 8x8 and a class token, through a pre-norm encoder."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 192, 8, stride=8)
        self.token = nn.Parameter(torch.zeros(1, 1, 192))
        self.position = nn.Parameter(torch.randn(65, 192) * 0.02)
        layer = nn.TransformerEncoderLayer(
            192, 3, 768, dropout=dropout, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 4, norm=nn.LayerNorm(192), enable_nested_tensor=False)
        self.head = nn.Linear(192, 10)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(images), -1, -1), patches], dim=1) + self.position
        return self.head(self.encoder(x)[:, 0])


class LlamaBlock(nn.Module):
    """Grouped-query attention with rotary positions, then a gated MLP; RMS norms, no biases."""

    def __init__(self, width: int, heads: int, groups: int, hidden: int) -> None:
        super().__init__()
        self.size = width // heads
        self.attention_norm = nn.RMSNorm(width)
        self.query = nn.Linear(width, heads * self.size, bias=False)
        self.key = nn.Linear(width, groups * self.size, bias=False)
        self.value = nn.Linear(width, groups * self.size, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.RMSNorm(width)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        normed = self.attention_norm(x)
        query, key, value = (
            project(normed).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        x = x + self.attention_out(seen.transpose(1, 2).flatten(2))
        normed = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class Llama(nn.Module):
    def __init__(
        self,
        layers: int = 4,
        width: int = 256,
        heads: int = 8,
        groups: int = 2,
        hidden: int = 704,
        vocabulary: int = 1000,
        length: int = 128,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, groups, hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        size = width // heads
        angles = torch.outer(torch.arange(length), 10000 ** -(torch.arange(0, size, 2) / size)).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(self.norm(x)).flatten(0, 1)


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(128, 256, num_layers=2, batch_first=True)
        self.head = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


@dataclass(frozen=True)
class Workload:
    """A model and the batch it is run on."""

    model: str
    size: str  # of the batch, for tables
    build: Callable[[float], nn.Module]  # takes the dropout
    batch: Callable[..., tuple[Tensor, Tensor]]  # takes the number of examples, if not the usual
    dropout: float = 0.0

    @property
    def title(self) -> str:
        """Return its name in tables."""
        return f"{self.model}, batch {self.size}"


def tokens(examples: int, length: int, vocabulary: int = 1000) -> Callable[..., tuple[Tensor, Tensor]]:
    """Batches of sequences, with a class for each token."""
    return lambda batch=examples: (
        torch.randint(vocabulary, (batch, length)),
        torch.randint(vocabulary, (batch * length,)),
    )


def values(examples: int, *shape: int) -> Callable[..., tuple[Tensor, Tensor]]:
    """Batches of numbers, with a class for each example."""
    return lambda batch=examples: (torch.randn(batch, *shape), torch.randint(10, (batch,)))


WORKLOADS = {
    "mlp": Workload("MLP 784-512-512-10", "64", lambda _: Mlp(), values(64, 784)),
    "encoder": Workload("TransformerEncoder(64, 4, 128) x 6", "4x16", Encoder, values(4, 16, 64), 0.1),
    "gpt2_like": Workload("GPT-2-like, 6 x 384", "4x128", Gpt2, tokens(4, 128), 0.1),
    "bert_like": Workload("BERT-like, 4 x 256", "8x128", Bert, tokens(8, 128), 0.1),
    "llama_like": Workload("Llama-like, 4 x 256, 8 heads on 2", "4x128", lambda _: Llama(), tokens(4, 128)),
    "resnet_like": Workload("ResNet-18-like", "16 of 64x64", lambda _: ResNet(), values(16, 3, 64, 64)),
    "vit_like": Workload("ViT-like, 4 x 192", "16 of 64x64", Vit, values(16, 3, 64, 64)),
    "lstm": Workload("LSTM 2 x 256", "16x32", lambda _: Lstm(), values(16, 32, 128)),
}

# Large enough to fill a GPU; named after the model above that they are a larger one of.
OF_GPUS = {
    "gpt2": Workload(
        "GPT-2, 12 x 768", "8x1024", lambda rate: Gpt2(rate, 12, 768, 12, 50304, 1024), tokens(8, 1024, 50304)
    ),
    "llama": Workload(
        "Llama, 12 x 1024, 16 heads on 4",
        "8x1024",
        lambda _: Llama(12, 1024, 16, 4, 2816, 32000, 1024),
        tokens(8, 1024, 32000),
    ),
    "resnet50": Workload("ResNet-50", "32 of 224x224", lambda _: ResNet50(), values(32, 3, 224, 224)),
}

# So narrow that a step is almost only the host's work; named after the model in JAX that computes the same.
NARROW = {
    "gpt2_like": Workload("GPT-2, 6 x 64", "1x8", lambda rate: Gpt2(rate, 6, 64, 1, 64, 8), tokens(1, 8, 64)),
    "llama_like": Workload("Llama, 6 x 64", "1x8", lambda _: Llama(6, 64, 4, 2, 176, 64, 8), tokens(1, 8, 64)),
    "bert_like": Workload("BERT, 6 x 64", "1x8", lambda rate: Bert(rate, 6, 64, 64, 8), tokens(1, 8, 64)),
}
