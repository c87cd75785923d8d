"""Training over four virtual CPU devices: inputs, random numbers, FSDPv2, the other ways to run. Each function is a
part of tests/api/distributed/test_sharded_training.py."""

import copy
import functools
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
from torch import nn
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

import torch_xla
import torch_xla.debug.metrics as met
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from tests.support import parts
from torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel as FSDPv2
from torch_xla.interop import from_jax
from torch_xla.utils.dlpack import to_dlpack

SQUARE = xs.Mesh(np.arange(4), (2, 2), ("fsdp", "tensor"))
LINE = xs.Mesh(np.arange(4), (4,), ("fsdp",))


def _shapes(tensor: torch.Tensor) -> list[list[int]]:
    return [list(shard.data.shape) for shard in xs.wrap_as_sharded_tensor(tensor).local_shards]


class _Batch(NamedTuple):
    image: torch.Tensor
    label: torch.Tensor


def batches_go_from_the_host_to_their_shards() -> None:
    rows, flat = xs.ShardingSpec(LINE, ("fsdp", None)), xs.ShardingSpec(LINE, ("fsdp",))
    host = torch.arange(32.0).view(8, 4)
    before = met.counter_value("UncachedCompile")
    for batch, sharding in (
        ({"x": host, "n": 3, "deep": [host, "text"]}, rows),
        ({"x": host, "y": host[:, 0]}, {"x": rows, "y": flat}),
        ([host, host[:, 0].clone()], [rows, flat]),
        (_Batch(host, host[:, 0].clone()), (rows, flat)),
    ):
        (found,) = list(pl.MpDeviceLoader([batch], torch_xla.device(), input_sharding=sharding))
        tensors = torch.utils._pytree.tree_leaves(found)
        for tensor in [each for each in tensors if isinstance(each, torch.Tensor)]:
            assert _shapes(tensor) == [[2, 4][: tensor.dim()]] * 4
            assert tensor.cpu().equal(host if tensor.dim() == 2 else host[:, 0])
        assert type(found) is type(batch)
    assert met.counter_value("UncachedCompile") == before
    (uneven,) = list(pl.MpDeviceLoader([host[:7]], torch_xla.device(), input_sharding=rows))
    assert _shapes(uneven) == [[2, 4]] * 4 and met.counter_value("UnevenInput") == 1
    assert uneven.cpu().equal(host[:7]) and (uneven.sum(0) + 1).cpu().equal(host[:7].sum(0) + 1)


def tensors_of_the_extension_go_straight_to_their_shards() -> None:
    host, rows = torch.arange(32.0).view(8, 4), xs.ShardingSpec(LINE, ("fsdp", None))
    extension = torch_xla._XLAC
    divided, whole = extension._xla_tensors_from_aten([host, host], ["xla:0"], [rows.xla_spec(host), None])
    assert _shapes(divided) == [[2, 4]] * 4 and _shapes(whole) == [[8, 4]] * 4
    assert divided.cpu().equal(host) and (divided + whole).cpu().equal(host + host)


def large_tensors_reach_the_devices_as_parts() -> None:
    host = torch.arange(64.0 * 256).view(64, 256)
    t = host.to("xla")
    assert not hasattr(t.untyped_storage(), "value")
    torch_xla.debug.plan(lambda: t + 1, steps=1)  # leaves it where it was
    assert not hasattr(t.untyped_storage(), "value")
    host_copy = host.clone()
    host.zero_()  # later changes of the host are not seen
    xs.mark_sharding(t, LINE, (None, "fsdp"))
    assert _shapes(t) == [[64, 64]] * 4 and t.cpu().equal(host_copy)
    whole = host_copy.to("xla")
    assert (whole + 1).cpu().equal(host_copy + 1)
    turned = host_copy.t().to("xla")
    xs.mark_sharding(turned, LINE, ("fsdp", None))
    assert turned.cpu().equal(host_copy.t()) and turned.stride() == host_copy.t().stride()


def _draws(mesh: xs.Mesh, spec: Any) -> list[torch.Tensor]:
    torch.manual_seed(5)
    drawn = []
    for make in (
        lambda: torch.rand(8, 12, device="xla"),
        lambda: torch.randn(8, 12, device="xla"),
        lambda: torch.randint(100, (8, 12), device="xla"),
        lambda: nn.functional.dropout(torch.ones(8, 12, device="xla"), 0.3),
        lambda: nn.init.kaiming_uniform_(torch.empty(8, 12, device="xla")),
        lambda: torch.bernoulli(torch.full((8, 12), 0.5, device="xla")),
        lambda: torch.rand(8, 12, device="xla", dtype=torch.float64),
    ):
        drawn.append(make())
        xs.mark_sharding(drawn[-1], mesh, spec)
    return [each.cpu() for each in drawn]


def random_numbers_do_not_depend_on_the_layout() -> None:
    expected = _draws(SQUARE, (None, None))
    for mesh, spec in ((SQUARE, ("fsdp", "tensor")), (SQUARE, (None, ("tensor", "fsdp"))), (LINE, ("fsdp", None))):
        for ours, theirs in zip(_draws(mesh, spec), expected, strict=True):
            assert ours.equal(theirs)
    uniform = expected[0]
    assert 0.35 < uniform.mean() < 0.65 and uniform.unique().numel() == 96


class _Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.down(nn.functional.gelu(self.up(x)))


class _Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.layers = nn.ModuleList(_Layer(16) for _ in range(2))
        self.head = nn.Linear(16, 32)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        logits: torch.Tensor = self.head(x)
        return logits


def _train(model: nn.Module, device: str, mesh: xs.Mesh | None) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens = torch.arange(64).view(8, 8).remainder(32).to(device)
    if mesh is not None:
        xs.mark_sharding(tokens, mesh, ("fsdp", None))
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(-1, 1).flatten())
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        losses.append(loss.detach())
    return [float(loss) for loss in losses]


def fsdp_trains_as_one_device_does() -> None:
    torch.manual_seed(1)
    host = _Decoder()
    start = copy.deepcopy(host)
    expected = _train(host, "cpu", None)
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={_Layer})
    model = FSDPv2(copy.deepcopy(start), LINE, auto_wrap_policy=policy)  # moved to the devices by the wrapper
    assert all(isinstance(layer, FSDPv2) for layer in model.module.layers)
    assert _shapes(model.module.layers[0].up.weight) == [[8, 16]] * 4  # attributes of the wrapped module
    assert "_orig_module.layers.0._orig_module.up.weight" in model.state_dict()
    torch.testing.assert_close(_train(model, "xla", LINE), expected, rtol=1e-4, atol=1e-5)
    assert _shapes(model.module.layers[0].up.weight) == [[8, 16]] * 4
    both = copy.deepcopy(start).to("xla")
    for layer in both.layers:
        xs.mark_sharding(layer.up.weight, SQUARE, ("tensor", "fsdp"))
        xs.mark_sharding(layer.down.weight, SQUARE, ("fsdp", "tensor"))
    wrapped = FSDPv2(
        both, mesh=SQUARE, shard_output=lambda out, mesh: xs.mark_sharding(out, mesh, ("fsdp", None, None))
    )
    assert _shapes(both.layers[0].up.weight) == [[16, 8]] * 4 and _shapes(both.head.weight) == [[16, 16]] * 4
    torch.testing.assert_close(_train(wrapped, "xla", SQUARE), expected, rtol=1e-4, atol=1e-5)
    for call, words in (
        (lambda: FSDPv2(nn.Linear(2, 2).to("xla"), xs.Mesh(np.arange(4), (4,), ("data",))), "has no axis 'fsdp'"),
        (lambda: FSDPv2(nn.Linear(2, 2).to("xla")), "there is no mesh"),
    ):
        try:
            call()
            raise AssertionError("not refused")
        except ValueError as error:
            assert words in str(error)


def compiled_functions_take_and_keep_shards() -> None:
    host = nn.Linear(16, 8)
    model = copy.deepcopy(host).to("xla")
    xs.mark_sharding(model.weight, LINE, ("fsdp", None))
    x = torch.linspace(-1, 1, 64).view(4, 16)

    @torch.compile(backend="openxla")
    def forward(t: torch.Tensor) -> torch.Tensor:
        y = xs.mark_sharding_with_gradients(model(t), LINE, ("fsdp", None))
        return torch.relu(y)

    found = forward(x.to("xla"))
    torch.testing.assert_close(found.cpu(), torch.relu(host(x)))
    assert _shapes(found) == [[1, 8]] * 4

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(t: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(t).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    compiled = torch_xla.compile(step, replay=True)
    reference = torch.optim.SGD(host.parameters(), lr=0.1)
    for _ in range(6):
        reference.zero_grad()
        expected = host(x).pow(2).mean()
        expected.backward()
        reference.step()
        torch.testing.assert_close(compiled(x.to("xla")).cpu(), expected.detach(), rtol=1e-4, atol=1e-6)
    assert compiled.is_replayed and _shapes(model.weight) == [[2, 16]] * 4


def eager_mode_runs_on_shards() -> None:
    with torch_xla.experimental.eager_mode_context(True):
        t = torch.arange(16.0).view(4, 4).to("xla")
        xs.mark_sharding(t, LINE, ("fsdp", None))
        t.mul_(2)
        assert _shapes(t + 1) == [[1, 4]] * 4 and t.tolist() == (torch.arange(16.0).view(4, 4) * 2).tolist()


def other_libraries_are_given_parts_or_told() -> None:
    host = torch.arange(32.0).view(8, 4)
    t = host.to("xla")
    xs.mark_sharding(t, LINE, ("fsdp", None))
    for call, words in (
        (lambda: to_dlpack(t), "is on 4 devices; a capsule has one"),
        (lambda: torch.to_dlpack(t), "is on 4 devices; a capsule has one"),  # type: ignore[attr-defined]
        (lambda: torch_xla._XLAC._unsafe_buffer_pointer(t), "its memory has several addresses"),
        (lambda: torch_xla.launch(print), "under SPMD one process drives all devices"),
    ):
        try:
            call()
            raise AssertionError("not refused")
        except RuntimeError as error:
            assert words in str(error)
    mesh = LINE.get_jax_mesh()
    array = jax.device_put(host.numpy(), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "fsdp")))
    back = from_jax(array)
    assert back.cpu().equal(host) and _shapes(back) == [[8, 1]] * 4 and (back + t).cpu().equal(2 * host)
    alone = from_jax(jax.device_put(host.numpy(), jax.devices()[2]))
    assert alone.cpu().equal(host) and _shapes(alone) == [[8, 4]] * 4


if __name__ == "__main__":
    xr.use_spmd()
    parts.run_all(globals())
