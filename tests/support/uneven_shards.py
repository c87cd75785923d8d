"""Sizes that four virtual devices do not divide: each function is a part of tests/api/distributed/test_meshes.py."""

import copy
import io
import tempfile
import warnings

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.interop as interop
import torch_xla.runtime as xr
from tests.support import parts
from torch_xla.experimental.distributed_checkpoint import SPMDLoadPlanner, SPMDSavePlanner
from torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel

xr.use_spmd()

SQUARE = xs.Mesh(np.arange(4), (2, 2), ("data", "model"))
LINE = xs.Mesh(np.arange(4), (4,), ("fsdp",))


def _shapes(tensor: torch.Tensor) -> list[list[int]]:
    return [list(shard.data.shape) for shard in xs.wrap_as_sharded_tensor(tensor).local_shards]


def _bytes(tensor: torch.Tensor) -> list[int]:
    buffer = tensor.untyped_storage().value.buffer  # type: ignore[attr-defined]
    return [shard.data.nbytes for shard in buffer.addressable_shards]


def parts_are_of_one_size_and_the_value_keeps_its_own() -> None:
    for size in ((6, 5), (1, 7), (0, 3)):
        host = torch.arange(float(np.prod(size))).view(size)
        for mesh, spec in ((LINE, ("fsdp", None)), (SQUARE, ("data", "model")), (SQUARE, (None, ("model", "data")))):
            t = host.to("xla") if mesh is LINE else host.to("xla") + 0  # computed, or still recorded
            marked = xs.mark_sharding(t, mesh, spec)  # type: ignore[arg-type]
            sides = [np.prod([dict(mesh.shape())[axis] for axis in np.ravel(entry) if axis]) for entry in spec]
            length = [-(-n // int(side)) if host.numel() else n for n, side in zip(size, sides, strict=True)]
            for shard in marked.local_shards:
                assert list(shard.data.shape) == length, (size, spec, shard)
                assert shard.unpadded_data.equal(host if shard.indices is ... else host[tuple(shard.indices)])
            assert t.shape == host.shape and t.cpu().equal(host) and t.tolist() == host.tolist()
            assert (t.t() @ (t * 2 + 1)).cpu().equal(host.t() @ (host * 2 + 1))
            assert np.array_equal(np.asarray(interop.to_jax(t)), host) and copy.deepcopy(t).cpu().equal(host)
            assert xs.clear_sharding(t) is t and _shapes(t) == [list(size)] * 4 and t.cpu().equal(host)


def what_is_marked_so_stays_so_however_it_is_written() -> None:
    w, expected = torch.zeros(6, 3).to("xla"), torch.zeros(6, 3)
    xs.mark_sharding(w, LINE, ("fsdp", None))
    other = torch.arange(18.0).view(6, 3)
    for ours, theirs in (
        (lambda: w.add_(1), lambda: expected.add_(1)),
        (lambda: w.copy_(other.to("xla")), lambda: expected.copy_(other)),
        (lambda: w.copy_(other + 1), lambda: expected.copy_(other + 1)),
        (lambda: w[2:, 1:].fill_(5), lambda: expected[2:, 1:].fill_(5)),
        (lambda: w.t().mul_(2), lambda: expected.t().mul_(2)),
    ):
        ours()
        theirs()
        torch_xla.sync()
        assert _shapes(w) == [[2, 3]] * 4 and w.cpu().equal(expected) and _bytes(w) == [24] * 4
    before = w.untyped_storage().value.buffer  # type: ignore[attr-defined]
    w.add_(1)
    torch_xla.sync(wait=True)
    assert before.is_deleted()
    xs.mark_sharding(w, SQUARE, ("data", "model"))  # from one padded form to another
    assert _shapes(w) == [[3, 2]] * 4 and w.cpu().equal(expected + 1)


def parts_are_loaded_and_saved_without_padding() -> None:
    t = torch.zeros(6, 3).to("xla")
    marked = xs.mark_sharding(t, LINE, ("fsdp", None))
    shards = marked.local_shards
    assert [list(s.unpadded_data.shape) for s in shards] == [[2, 3], [2, 3], [2, 3], [0, 3]]
    for shard in shards:
        shard.unpadded_data = torch.full(shard.unpadded_data.shape, float(shard.shard_device[-1]))
    marked.load_local_shards_(shards)
    expected = torch.tensor([0.0, 0, 1, 1, 2, 2])[:, None].expand(6, 3)
    assert t.cpu().equal(expected) and _shapes(t) == [[2, 3]] * 4
    file = io.BytesIO()
    torch.save(t, file)
    file.seek(0)
    assert torch.load(file).cpu().equal(expected)
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        dcp.save({"t": t}, checkpoint_id=folder, planner=SPMDSavePlanner(), no_dist=True)
        for mesh, spec in ((LINE, ("fsdp", None)), (SQUARE, ("model", "data")), (LINE, (None, None))):
            into = torch.zeros(6, 3).to("xla")
            xs.mark_sharding(into, mesh, spec)  # type: ignore[arg-type]
            dcp.load({"t": into}, checkpoint_id=folder, planner=SPMDLoadPlanner(), no_dist=True)
            assert into.cpu().equal(expected)


def _trained(device: str, divided: bool) -> tuple[list[float], nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Embedding(37, 10), nn.Linear(10, 21), nn.GELU(), nn.Linear(21, 37)).to(device)
    if divided:
        for parameter in model.parameters():
            xs.mark_sharding(parameter, LINE, ("fsdp", *[None] * (parameter.dim() - 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    losses = []
    for _ in range(4):
        tokens = torch.arange(24).view(8, 3).to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        losses.append(loss.detach())
    return [loss.item() for loss in losses], model, optimizer


def training_is_that_of_one_device_and_its_state_lies_as_the_parameters() -> None:
    expected, host, _ = _trained("cpu", False)
    found, model, optimizer = _trained("xla", True)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(model.parameters(), host.parameters(), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-3, atol=1e-5)
        for name in ("exp_avg", "exp_avg_sq"):
            state = optimizer.state[ours][name]
            assert _bytes(state) == _bytes(ours) == [-(-len(ours) // 4) * ours[0].numel() * 4] * 4
    plan = torch_xla.debug.plan(lambda: model(torch.arange(24).view(8, 3).to("xla")).sum().backward(), steps=1)
    assert plan.programs[0].held.parameters == sum(_bytes(p)[0] for p in model.parameters())


def a_large_parameter_that_no_axis_divides_is_divided_all_the_same() -> None:
    layer = nn.Linear(257, 257).to("xla")
    SpmdFullyShardedDataParallel(layer, LINE)
    assert _shapes(layer.weight) == [[65, 257]] * 4 and _shapes(layer.bias) == [[257]] * 4


def indices_that_are_divided_unevenly_scatter_as_others() -> None:
    def run(device: str) -> list[torch.Tensor]:
        table, index = torch.arange(20.0).view(10, 2).to(device), torch.tensor([1, 9, 3, 3, 0, 12]).to(device)
        if device == "xla":
            xs.mark_sharding(index, LINE, ("fsdp",))
        table.requires_grad_()
        index = index % 10
        nn.functional.embedding(index, table).square().sum().backward()
        assert table.grad is not None
        rows, found = table.detach()[:6], torch.zeros(10, 2, device=device)
        found = found.index_add(0, index, rows).index_put((index,), rows, accumulate=True)
        added = found.scatter_add(0, index[:, None].expand(6, 2), rows)
        return [table.grad, found, added, found.index_copy(0, index, rows)]

    torch.testing.assert_close([each.cpu() for each in run("xla")], run("cpu"))


def values_are_captured_as_they_are() -> None:
    w = torch.arange(6.0).to("xla")
    xs.mark_sharding(w, LINE, ("fsdp",))
    try:
        with torch_xla.debug.find_nan():
            y = (w - 6).log()
            torch_xla.sync()
            del y
    except torch_xla.debug.NotFinite as error:
        assert "its result f32[6]: 6 of 6 elements are NaN" in str(error), error
    else:
        raise AssertionError("not found")


if __name__ == "__main__":
    parts.run_all(globals())
