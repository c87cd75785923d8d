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
    xs.annotate_custom_sharding(w, SQUARE, ("data", "model"))  # from one padded form to another
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


def what_lies_behind_an_end_is_added_nowhere() -> None:
    places = torch.tensor([[3, 1, 4], [2, 2, 0], [1, 4, 4], [3, 0, 2], [4, 1, 2]])
    slices = torch.tensor([3, 2, 2, 4, 1])
    host = torch.arange(15.0).view(5, 3) / 7 - 3

    def results(x: torch.Tensor, i: torch.Tensor, one: torch.Tensor) -> list[torch.Tensor]:
        below = torch.full_like(x, -9)
        return [
            x.scatter_add(0, i, x.exp()),
            torch.zeros_like(x).scatter_add(0, i, torch.ones_like(x)),
            *(x.scatter_reduce(0, i, -x.exp(), how, include_self=False) for how in ("mean", "prod", "amax", "amin")),
            x.index_add(0, one, x.exp()),
            below.index_reduce(0, one, -x.exp(), "amax"),
            x.index_put((one,), x.exp(), accumulate=True),
            torch.autograd.functional.vjp(lambda w: nn.functional.embedding(i, w), x, x.exp()[i])[1],
            torch.autograd.functional.vjp(lambda w: w.gather(0, i), x, x.exp())[1],
            torch.bincount(one),
            torch.histc(x, 4, -3, 0),
            (x > -2).nonzero(),
            x[one > 2],
            torch.segment_reduce(x, "max", lengths=one[:2], axis=0),
        ]

    warnings.simplefilter("ignore")  # index_reduce is a beta
    expected = results(host, places, slices)
    for mesh, spec in ((SQUARE, ("data", None)), (SQUARE, (None, "model")), (LINE, ("fsdp", None))):
        for divided in range(1, 8):
            there = [t.to("xla") for t in (host, places, slices)]
            for place, t in enumerate(there):
                if divided & 1 << place:
                    xs.mark_sharding(t, mesh, spec[-t.dim() :])  # type: ignore[arg-type]
            for ours, theirs in zip(results(*there), expected, strict=True):
                torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-4)


def one_element_of_what_is_divided_is_added_once() -> None:
    x = torch.ones(1).to("xla").requires_grad_()
    padded = nn.functional.pad(x.cummin(-1).values, [0, 1])
    padded = xs.mark_sharding_with_gradients(padded, SQUARE, ("model",))
    (padded * torch.tensor([0.5, 0.25]).to("xla")).sum().backward()
    assert x.grad is not None and x.grad.item() == 0.5


def batches_of_indices_that_are_divided_scatter_as_others() -> None:
    places = torch.tensor([[1, 3, 0, 1], [2, 2, 1, 0], [0, 1, 3, 3], [3, 0, 2, 2]])
    host = torch.arange(16.0).view(4, 4)
    for specs in ((("data", "model"), None), ("data", "model")), (("data", "model"), ("data", None)):
        for dim in (0, 1):
            x, i, u = (t.to("xla") for t in (host, places, host + 0.5))
            for t, spec in ((x, specs[0]), (i, specs[1]), (u, ("data", "model"))):
                xs.mark_sharding(t, SQUARE, spec)  # type: ignore[arg-type]
            found = x.scatter_add(dim, i, u), x.scatter(dim, i * 0 + i, u * 0 + 1)
            assert found[0].cpu().equal(host.scatter_add(dim, places, host + 0.5)), (specs, dim)
            assert found[1].cpu().equal(host.scatter(dim, places, torch.ones(4, 4))), (specs, dim)


def tables_and_what_is_looked_up_there_are_divided_alike() -> None:
    table, places = torch.randn(5, 8), torch.randint(5, (5, 3))
    there, at = table.to("xla"), places.to("xla")
    xs.mark_sharding(there, SQUARE, (None, "model"))
    xs.mark_sharding(at, SQUARE, ("data", "model"))
    for look in (lambda w, i: w[i], lambda w, i: nn.functional.embedding(i, w), lambda w, i: torch.hash_tensor(w[i])):
        assert look(there, at).cpu().equal(look(table, places))


def gradients_of_steps_are_divided_as_what_they_step_through() -> None:
    host = torch.arange(336.0)
    for mesh, spec, cut in ((LINE, ("fsdp",), slice(193, 336, 3)), (SQUARE, ("model",), slice(7, 100, 4))):
        results = []
        for device in ("cpu", "xla"):
            x = host.clone().to(device).requires_grad_()
            if device == "xla":
                xs.mark_sharding(x, mesh, spec)
            (x[cut] * torch.arange(x[cut].numel(), device=device)).sum().backward()
            gradient = x.grad * 2  # type: ignore[operator]
            if device == "xla":
                xs.mark_sharding(gradient, mesh, spec)
            results.append(gradient.cpu())
        assert results[0].equal(results[1])


def one_element_is_whole_where_it_is_divided() -> None:
    host = torch.arange(5.0).view(5, 1)
    t = host.to("xla")
    xs.mark_sharding(t, LINE, (None, "fsdp"))
    for view in (
        lambda t: t.expand(5, 3),
        lambda t: t.squeeze(1),
        lambda t: t.t(),
        lambda t: t[1:],
        lambda t: t.view(-1),
    ):
        assert view(t).cpu().equal(view(host))
    image, kernel = torch.randn(1, 1, 4, 6, 6), torch.randn(1, 1, 1, 2, 2)
    there, weight = image.to("xla"), kernel.to("xla")
    for each in (there, weight):
        xs.mark_sharding(each, SQUARE, ("model", None, None, None, "data"))
    expected = torch.nn.functional.conv3d(image, kernel, padding="same", dilation=2)
    torch.testing.assert_close(torch.nn.functional.conv3d(there, weight, padding="same", dilation=2).cpu(), expected)


def images_that_are_divided_are_pooled_and_convolved() -> None:
    functional = torch.nn.functional
    host = torch.randn(2, 3, 12, 4)
    kernel = torch.randn(3, 2, 4, 3)
    for function in (
        lambda x, w: functional.avg_pool2d(x, 3, 2, 1),
        lambda x, w: functional.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1, dilation=2),
        lambda x, w: functional.conv2d(x, w.transpose(0, 1), stride=2, padding=1),
    ):
        results = []
        for device in ("cpu", "xla"):
            x, w = host.clone().to(device).requires_grad_(), kernel.to(device)
            if device == "xla":
                xs.mark_sharding(x, LINE, (None, None, "fsdp", None))
            result = function(x, w)
            result.square().sum().backward()
            results.append([result.detach().cpu(), x.grad.cpu()])  # type: ignore[union-attr]
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


def grouped_convolutions_are_divided_by_what_reads_them() -> None:
    functional = nn.functional
    for size, kernel, spec, function in (
        (
            (1, 6, 3, 6),
            (2, 3, 1, 2),
            (None, "data", None, "model"),
            lambda x, w: functional.conv2d(x, w, None, 2, 2, 1, 2),
        ),
        (
            (1, 2, 6, 4),
            (2, 1, 1, 3),
            (None, None, "model", None),
            lambda x, w: functional.conv_transpose2d(x, w, None, 3, 2, 0, 2, 2),
        ),
        ((2, 4, 8), (4, 2, 3), ("data", "model", None), lambda x, w: functional.conv1d(x, w, None, 1, 1, 1, 2)),
    ):
        host, weight, results = torch.randn(size), torch.randn(kernel), []
        for device in ("cpu", "xla"):
            x, w = (t.clone().to(device) for t in (host, weight))
            if device == "xla":
                xs.mark_sharding(x, SQUARE, (None, "data", "model", None)[: x.dim()])
                xs.mark_sharding(w, LINE, ("fsdp", *[None] * (w.dim() - 1)))
            result = function(x.requires_grad_(), w.requires_grad_())
            if device == "xla":
                xs.mark_sharding(result, SQUARE, spec)  # type: ignore[arg-type]
            result.sin().sum().backward()
            results.append([t.detach().cpu() for t in (result, x.grad, w.grad)])  # type: ignore[union-attr]
        torch.testing.assert_close(*results, rtol=1e-3, atol=1e-3)


def transforms_find_their_dimensions_whole() -> None:
    for size in ((5, 6, 7), (4, 8, 8), (1, 2)):
        host = torch.randn(size, dtype=torch.complex64)
        t = host.to("xla")
        xs.mark_sharding(t, SQUARE, ("data", *[None] * (len(size) - 2), "model"))
        for transform in (torch.fft.fft, torch.fft.ifft2, torch.fft.fftn):
            torch.testing.assert_close(transform(t).cpu(), transform(host), rtol=1e-4, atol=1e-4)
    for size in ((1, 2), (2, 1), (3, 1, 2)):
        host = torch.randn(size, dtype=torch.complex64)
        t = host.to("xla")
        xs.mark_sharding(t, SQUARE, ("data", *[None] * (len(size) - 2), "model"))
        for dims in [dims for dims in ((0, -1), (-1, 0)) if size[dims[1]] > 1]:
            for given in (torch.fft.irfftn, torch.fft.hfftn, lambda x, dim: torch.fft.rfftn(x.real, dim=dim)):
                torch.testing.assert_close(given(t, dim=dims).cpu(), given(host, dim=dims), rtol=1e-4, atol=1e-4)


def transforms_read_what_was_gathered_in_any_order() -> None:
    host, places = torch.randn(10, 16, 22, dtype=torch.complex64), torch.arange(3520) % 1000
    for spec, result in ((("model", None, "data"), None), (("data", "model", None), (None, None, "data"))):
        found = []
        for device in ("cpu", "xla"):
            x = host.clone().to(device)
            if device == "xla":
                xs.mark_sharding(x, SQUARE, spec)  # type: ignore[arg-type]
            transformed = torch.fft.ifft(x.transpose(1, 2)) * 2
            if device == "xla" and result is not None:
                xs.mark_sharding(transformed, SQUARE, result)
            into = torch.zeros(1000, dtype=torch.complex64, device=device)
            found.append(into.index_add(0, places.to(device), transformed.reshape(-1)).cpu())
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


def margins_that_crop_have_gradients() -> None:
    host, given = torch.randn(1, 3, 3, 5), torch.randn(1, 3, 3, 6)
    for mode in ("replicate", "reflect"):
        results = []
        for device in ("cpu", "xla"):
            x, gradient = host.clone().to(device), given.clone().to(device)
            if device == "xla":
                xs.mark_sharding(x, SQUARE, (None, None, "model", None))
                xs.mark_sharding(gradient, SQUARE, (None, None, None, ("data", "model")))
            x.requires_grad_()
            padded = nn.functional.pad(x, (-1, 2, 0, 0), mode=mode)
            padded.backward(gradient)
            results.append([padded.detach().cpu(), x.grad.cpu()])  # type: ignore[union-attr]
        torch.testing.assert_close(*results)


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
