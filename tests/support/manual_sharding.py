"""Manual regions over four virtual devices: each function is a part of tests/api/distributed/test_meshes.py."""

import os
import tempfile

import numpy as np
import torch

import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from tests.support import parts
from torch_xla._engine.compile.disk import cache_folder, disk_cache
from torch_xla._engine.compile.stages import stage_cuts, staged_program
from torch_xla._engine.metrics import counters
from torch_xla._engine.step.schedule import clear_schedules

xr.use_spmd()
XLAC = torch_xla._XLAC

LINE = xs.Mesh(np.arange(4), (4,), ("x",))
SQUARE = xs.Mesh(np.arange(4), (2, 2), ("x", "y"))


def each_device_computes_on_its_part() -> None:
    host = torch.arange(24.0).view(8, 3)
    x = host.to("xla")
    own = xs.enable_manual_sharding(x, ("x", None), mesh=LINE)
    assert own.shape == (2, 3)
    shifted = own - own.sum(0) + torch.ones(3, device="xla") * 2
    made = xs.disable_manual_sharding(shifted, ("x", None), x.shape, mesh=LINE)
    assert made.sharding_spec == (made * 2).sharding_spec == "{devices=[4,1]0,1,2,3}"  # known before it is computed
    parts_ = host.view(4, 2, 3)
    expected = (parts_ - parts_.sum(1, keepdim=True) + 2).view(8, 3)
    assert made.cpu().equal(expected) and made.sharding_spec == "{devices=[4,1]0,1,2,3}"
    assert own.sharding_spec == "{manual}"
    # `own` and `shifted` came out of that program, each device with its own.
    assert [shard.data.tolist() for shard in own.local_shards] == parts_.tolist()
    again = xs.disable_manual_sharding(shifted * 2, ("x", None), x.shape, mesh=LINE)
    assert again.cpu().equal(2 * expected)
    try:
        own.cpu()
    except RuntimeError as error:
        assert "each device has a value of its own of this tensor of shape [2, 3]" in str(error)
    else:
        raise AssertionError("not refused")
    uneven = xs.enable_manual_sharding(torch.ones(5).to("xla"), ("x",), mesh=LINE)
    assert uneven.shape == (2,)
    assert xs.disable_manual_sharding(uneven + 1, ("x",), torch.Size([5]), mesh=LINE).tolist() == [2] * 5


def a_region_is_one_program_of_calls_of_vendors() -> None:
    host = torch.arange(24.0).view(8, 3)
    for way in ("recorded", "computed"):
        x = host.to("xla")
        try:
            XLAC._spmd_full_to_shard_shape(x)
        except RuntimeError as error:
            assert "this tensor of shape [8, 3] has no sharding" in str(error)
        else:
            raise AssertionError("not refused")
        xs.mark_sharding(x, LINE, ("x", None))
        shifted = x + 1  # which is divided as it is
        own = XLAC._spmd_full_to_shard_shape(shifted)
        if way == "computed":
            torch_xla.sync()
        assert own.shape == (2, 3) and XLAC._get_xla_sharding_spec(own) == "{manual}"
        doubled = own * 2
        assert XLAC._get_xla_sharding_spec(doubled) == "{manual}" and XLAC._get_xla_sharding_type(doubled) == 4
        marked = xs._mark_manual_sharding(doubled)
        assert marked.sharding_spec == "{manual}"
        back = XLAC._spmd_shard_to_full_shape(doubled, LINE.get_op_sharding(("x", None)), host.shape, host.dtype)
        assert XLAC._get_xla_sharding_spec(back) in ("", "{devices=[4,1]0,1,2,3}")
        assert back.cpu().equal((host + 1) * 2)
        try:
            XLAC._spmd_full_to_shard_shape(doubled)
        except RuntimeError as error:
            assert "each device has its own value of this tensor of shape [2, 3]" in str(error)
        else:
            raise AssertionError("not refused")


def copies_are_manual_once_they_are_marked() -> None:
    x = torch.arange(4.0).to("xla")
    for _ in range(2):
        made = xs._mark_manual_sharding(x)
        assert made.sharding_spec == XLAC._get_xla_sharding_spec(x) == "{manual}" and x.shape == (4,)
    assert [shard.data.tolist() for shard in made.local_shards] == [[0, 1, 2, 3]] * 4
    assert made.sharding_spec == "{manual}"


def gradients_pass_through_the_region() -> None:
    torch.manual_seed(0)
    host_x, host_w = torch.randn(8, 4, requires_grad=True), torch.randn(4, 6, requires_grad=True)
    (host_x @ host_w).tanh().sum().backward()
    x, w = (t.detach().to("xla").requires_grad_() for t in (host_x, host_w))
    own_x = xs.enable_manual_sharding(x, ("x", None), mesh=SQUARE)
    own_w = xs.enable_manual_sharding(w, (None, "y"), mesh=SQUARE)
    made = xs.disable_manual_sharding((own_x @ own_w).tanh(), ("x", "y"), torch.Size([8, 6]), mesh=SQUARE)
    made.sum().backward()
    torch.testing.assert_close(x.grad.cpu(), host_x.grad)  # type: ignore[union-attr]
    torch.testing.assert_close(w.grad.cpu(), host_w.grad)  # type: ignore[union-attr]


def devices_exchange_what_they_computed() -> None:
    host = torch.arange(16.0).view(4, 4)
    x = host.to("xla")
    xs.mark_sharding(x, LINE, ("x", None))
    own = XLAC._spmd_full_to_shard_shape(x)
    assert own.shape == (1, 4)
    rows = LINE.get_op_sharding(("x", None))
    summed = XLAC._spmd_shard_to_full_shape(XLAC._xla_spmd_all_reduce("sum", own, 0.5, []), rows, [4, 4], x.dtype)
    assert summed.cpu().equal((host.sum(0) * 0.5).expand(4, 4))
    pairs = XLAC._xla_spmd_all_reduce("sum", own, 1.0, [[0, 1], [2, 3]])
    found = XLAC._spmd_shard_to_full_shape(pairs, rows, [4, 4], x.dtype)
    assert found.cpu().equal(host.view(2, 2, 4).sum(1, keepdim=True).expand(2, 2, 4).reshape(4, 4))
    scattered = XLAC._xla_spmd_reduce_scatter("sum", own, 1.0, 1, 4, [[0, 1, 2, 3]])
    assert scattered.shape == (1, 1)
    columns = LINE.get_op_sharding((None, "x"))
    assert XLAC._spmd_shard_to_full_shape(scattered, columns, [1, 4], x.dtype).cpu().equal(host.sum(0)[None])


def tensors_are_made_of_their_parts() -> None:
    own = [torch.full((2, 3), float(index)) for index in range(4)]
    whole = XLAC._global_tensor_from_cpu_shards(own, LINE.get_op_sharding(("x", None)))
    assert whole.cpu().equal(torch.cat(own)) and xs.wrap_if_sharded(whole).sharding_spec == "{devices=[4,1]0,1,2,3}"
    own[3] = own[3][:1]
    assert (
        XLAC._global_tensor_from_cpu_shards(own, LINE.get_op_sharding(("x", None)), [7, 3]).cpu().equal(torch.cat(own))
    )


def layers_of_a_region_are_compiled_once_and_kept() -> None:
    host = torch.linspace(-1, 1, 8 * 4).view(8, 4)
    weights = [torch.eye(4) * (1 + layer / 8) for layer in range(8)]
    whole, found = host, []
    for weight in weights:
        whole = (whole.sin() @ weight).cos() * 0.5 + whole
    with tempfile.TemporaryDirectory() as folder:
        cache_folder.choose(folder)
        for _ in range(2):
            clear_schedules()
            staged_program._executables.clear()
            before = _counted()
            own = xs.enable_manual_sharding(host.to("xla"), ("x", None), mesh=LINE)
            for weight in [weight.to("xla") for weight in weights]:
                own = (own.sin() @ weight).cos() * 0.5 + own
            made = xs.disable_manual_sharding(own * 2, ("x", None), host.shape, mesh=LINE)
            torch_xla.sync()
            found.append([after - earlier for after, earlier in zip(_counted(), before, strict=True)])
            torch.testing.assert_close(made.cpu(), 2 * whole)
            assert [shard.data.shape for shard in xs.wrap_as_sharded_tensor(own).local_shards] == [(2, 4)] * 4
        cache_folder.choose(None)
    (first, shared, compiled, hits), (again, _, none, kept) = found
    assert first == again == 1 and shared > 0 and compiled > 0 and hits == 0
    assert none == 0 and kept > 0


def _counted() -> list[int]:
    names = ("StagedProgram", "StageCompile", "StableHloCompile", "PersistentCacheHit")
    return [counters.value_of(name) or 0 for name in names]


if __name__ == "__main__":
    stage_cuts.LEAST_BYTES_ON_HOST, disk_cache.WORTH_KEEPING_SECONDS = 1, 0.0
    os.environ["XLA_STAGE_OPERATIONS"] = "4"

    parts.run_all(globals())
