"""Small programs that use the CPU alone, to be run with this package imported and without: `cpu_programs.py [import]`.

Prints, as JSON, what each returned, or what it raised, and its warnings.
"""

import copy
import io
import json
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from outcomes import outcome

if sys.argv[1:] == ["import"]:
    import torch_xla
    import torch_xla.core.xla_model as xm
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch._subclasses import FakeTensorMode
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.attention.flex_attention import create_block_mask
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

x = torch.arange(12.0).reshape(4, 3)
programs: dict[str, Callable[[], Any]] = {}


def program(function: Callable[[], Any]) -> Callable[[], Any]:
    programs[function.__name__] = function
    return function


def in_process_group(function: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> Any:
        dist.init_process_group(rank=0, world_size=1, store=dist.HashStore())
        try:
            return function()
        finally:
            dist.destroy_process_group()

    programs[function.__name__] = run
    return run


def module() -> torch.nn.Linear:
    made = torch.nn.Linear(3, 2)
    with torch.no_grad():
        made.weight.fill_(0.5)
        made.bias.fill_(1.0)
    return made


@program
def data_parallel() -> Any:
    spread = torch.nn.DataParallel(module())
    return spread.device_ids, spread(x).tolist()


@program
def data_parallel_as_a_function() -> Any:
    return torch.nn.parallel.data_parallel(module(), x).tolist()


@program
def loader_with_pinned_memory() -> Any:
    return [(batch.tolist(), batch.is_pinned()) for (batch,) in DataLoader(TensorDataset(x), 2, pin_memory=True)]


@program
def loader_with_a_worker() -> Any:
    loader = DataLoader(TensorDataset(x), 2, pin_memory=True, num_workers=1)
    return [(batch.tolist(), batch.is_pinned()) for (batch,) in loader]


@program
def the_accelerator() -> Any:
    answers = torch.accelerator.is_available(), torch.accelerator.device_count()
    return *answers, str(torch.accelerator.current_accelerator()), str(torch._C._get_accelerator())


@program
def the_device_module() -> Any:
    return torch.get_device_module().__name__


@program
def the_current_device() -> Any:
    return torch.accelerator.current_device_index()


@program
def waiting() -> Any:
    return torch.accelerator.synchronize()


@program
def memory_in_use() -> Any:
    return torch.accelerator.memory_allocated()


@program
def seeds() -> Any:
    torch.manual_seed(5)
    with torch.random.fork_rng():
        inside = torch.rand(2).tolist()
    return inside == torch.rand(2).tolist(), inside, torch.initial_seed()


@program
def compiled_training() -> Any:
    model = module()
    optimizer = torch.optim.AdamW(model.parameters())
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        compiled(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.weight.tolist()


@program
def optimizers() -> Any:
    weights = []
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop, torch.optim.NAdam, torch.optim.Adagrad):
        model = module()
        optimizer = kind(model.parameters(), lr=0.1)
        model(x).sum().backward()
        optimizer.step()
        weights.append(model.weight.tolist())
    return weights


@program
def checkpoints() -> Any:
    leaf = x.clone().requires_grad_()
    checkpoint(lambda t: t * t, leaf, use_reentrant=False).sum().backward()
    assert leaf.grad is not None
    return leaf.grad.tolist()


@program
def saving() -> Any:
    file = io.BytesIO()
    torch.save(module().state_dict(), file)
    file.seek(0)
    return {name: (str(value.device), value.tolist()) for name, value in torch.load(file).items()}


@program
def copies_and_moves() -> Any:
    model = module()
    parameter = model.weight
    model.to(torch.float64)
    return model.weight is parameter, copy.deepcopy(model).weight.tolist()


@program
def profiles() -> Any:
    model = module()
    with torch.profiler.profile() as profile:
        model(x)
    return [event.key for event in profile.key_averages()]


@program
def autocast() -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return str((x @ x.T).dtype), torch.is_autocast_enabled(), torch.is_autocast_enabled("cpu")


@program
def masks_of_flex_attention() -> Any:
    return str(create_block_mask(lambda b, h, q, k: q >= k, 1, 1, 128, 128).kv_indices.device)


@program
def fake_tensors_of_devices_that_are_not_there() -> Any:
    with FakeTensorMode():
        return str(torch.tensor([1, 2], device="cuda").device), str(torch.ones(2, device="cuda").device)


@program
def exported() -> Any:
    return str(torch.export.export(module(), (x,)).graph)


@program
def transforms() -> Any:
    return torch.vmap(torch.sum)(x).tolist(), torch.func.jacrev(lambda t: t.sin().sum())(x).tolist()


@in_process_group
def default_process_group() -> Any:
    gathered: list[Any] = [None]
    dist.barrier()
    dist.all_gather_object(gathered, {"a": 1})
    return dist.get_backend(), str(dist.group.WORLD._device_types), gathered  # type: ignore[union-attr]


@in_process_group
def distributed_data_parallel() -> Any:
    model = module()
    torch.nn.parallel.DistributedDataParallel(model)(x).sum().backward()
    assert model.weight.grad is not None
    return model.weight.grad.tolist()


@in_process_group
def fully_sharded() -> Any:
    model = module()
    fully_shard(model)
    model(x).sum().backward()
    return str(model.weight.device_mesh), model.weight.grad.full_tensor().tolist()  # type: ignore[attr-defined,union-attr]


@in_process_group
def fully_sharded_the_old_way() -> Any:
    return FullyShardedDataParallel(module())(x).tolist()


@in_process_group
def distributed_tensors() -> Any:
    mesh = init_device_mesh("cpu", (1,))
    return str(mesh), distribute_tensor(x, mesh, [Shard(0)]).full_tensor().tolist()


@in_process_group
def distributed_checkpoints() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        dcp.save(module().state_dict(), checkpoint_id=folder)
        state = {name: torch.zeros_like(value) for name, value in module().state_dict().items()}
        dcp.load(state, checkpoint_id=folder)
        return {name: value.tolist() for name, value in state.items()}


@in_process_group
def sharded_optimizers() -> Any:
    model = module()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam)
    model(x).sum().backward()
    optimizer.step()
    return model.weight.tolist(), sorted(get_state_dict(model, torch.optim.SGD(model.parameters()))[0])


if __name__ == "__main__":
    torch.set_num_threads(1)
    results = {name: outcome(function) for name, function in programs.items()}
    if sys.argv[1:] == ["import"]:
        for _ in range(3):
            xm.mark_step()  # as pipelines do that never use the device
        assert not torch_xla._XLAC._xla_runtime_is_initialized()
        # PyTorch's build says which, also where the machine has none.
        native = torch.device("cuda") if torch.backends.cuda.is_built() else None
        assert torch.accelerator.current_accelerator() == native
        assert torch_xla.device() == torch.accelerator.current_accelerator() or torch.accelerator.is_available()
        assert torch.get_device_module() is torch.xla  # type: ignore[attr-defined]
    print(json.dumps(results))
