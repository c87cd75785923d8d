"""A decoder on a mesh of 2 × 2 devices, in three layouts: the same losses, and less memory on each device.

    python examples/mesh.py [--fast] [--steps 20]

On the CPU it makes four virtual devices. The layouts:

- data: each device has a copy of the model and a quarter of the batch;
- fsdp: each device has a quarter of every parameter, of its gradient and of its optimizer's state, too;
- both: pairs of devices share the batch, and within a pair each has half of the heads and of the inner width.
"""

import argparse
import os
import time
from typing import Any

os.environ.setdefault("CPU_NUM_DEVICES", "4")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import torch_xla  # noqa: E402
import torch_xla.distributed.parallel_loader as pl  # noqa: E402
import torch_xla.distributed.spmd as xs  # noqa: E402
import torch_xla.runtime as xr  # noqa: E402
from torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel as FSDPv2  # noqa: E402


class Block(nn.Module):
    """Attention and a gated inner layer, each behind a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_inner = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, 4 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(4 * width, width, bias=False)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        """x (batch, length, width) to the same."""
        batch, length, width = x.shape
        y = self.before_attention(x)
        q, k, v = (
            layer(y).view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.o(mixed.transpose(1, 2).reshape(batch, length, width)))
        y = self.before_inner(x)
        return x + self.dropout(self.down(F.silu(self.gate(y)) * self.up(y)))


class Decoder(nn.Module):
    """Predicts each token from those before it."""

    def __init__(self, vocabulary: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens (batch, length), int64, to logits (batch, length, vocabulary)."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def lay_out(model: Decoder, layout: str) -> tuple[nn.Module, xs.ShardingSpec]:
    """The model with its parameters divided, and how its batches are."""
    devices = np.arange(4)
    if layout == "data":
        mesh = xs.Mesh(devices, (4,), ("data",))
        return model, xs.ShardingSpec(mesh, ("data", None))
    if layout == "fsdp":
        mesh = xs.Mesh(devices, (4,), ("fsdp",))
        return FSDPv2(model, mesh), xs.ShardingSpec(mesh, ("fsdp", None))
    mesh = xs.Mesh(devices, (2, 2), ("fsdp", "tensor"))
    for block in model.blocks:
        for layer in (block.q, block.k, block.v, block.gate, block.up):
            xs.mark_sharding(layer.weight, mesh, ("tensor", "fsdp"))
        for layer in (block.o, block.down):
            xs.mark_sharding(layer.weight, mesh, ("fsdp", "tensor"))
    return FSDPv2(model, mesh), xs.ShardingSpec(mesh, ("fsdp", None))


def bytes_on_one_device(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes of parameters and optimizer state on the first device."""
    tensors = [*model.parameters(), *(t for state in optimizer.state.values() for t in state.values())]
    shards = [xs.wrap_as_sharded_tensor(t.detach()).local_shards[0].data for t in tensors if t.device.type == "xla"]
    return sum(shard.nbytes for shard in shards)


def train(layout: str, batches: list[Tensor], sizes: dict[str, int]) -> tuple[list[float], int, float]:
    """The losses, the bytes on one device, and the seconds of a step."""
    torch.manual_seed(0)
    model, spec = lay_out(Decoder(**sizes).to("xla"), layout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses: list[Any] = []
    began = 0.0
    for step, tokens in enumerate(pl.MpDeviceLoader(batches, "xla", input_sharding=spec)):
        if step == 3:
            began = time.perf_counter()
        optimizer.zero_grad()
        logits = model(tokens)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    torch_xla.sync(wait=True)
    seconds = (time.perf_counter() - began) / max(1, len(batches) - 3)
    return [loss.item() for loss in losses], bytes_on_one_device(model, optimizer), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--fast", action="store_true", help="small sizes and few steps")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    xr.use_spmd()
    if xr.global_runtime_device_count() != 4:
        raise SystemExit(f"this example has a mesh of 4 devices; here are {xr.global_runtime_device_count()}")
    small = {"vocabulary": 64, "width": 32, "heads": 4, "layers": 2}
    large = {"vocabulary": 256, "width": 256, "heads": 8, "layers": 4}
    sizes, length, steps = (small, 16, 5) if options.fast else (large, 128, options.steps)
    torch.manual_seed(1)
    batches = [torch.randint(sizes["vocabulary"], (8, length)).sort(dim=1).values for _ in range(steps)]
    first: list[float] = []
    for layout in ("data", "fsdp", "both"):
        losses, held, seconds = train(layout, batches, sizes)
        first = first or losses
        torch.testing.assert_close(losses, first, rtol=1e-3, atol=1e-4)
        print(
            f"{layout:5} losses {losses[0]:.4f} → {losses[-1]:.4f}   {held / 1e6:.2f} MB on a device   {seconds:.3f} s"
        )


if __name__ == "__main__":
    main()
