"""Programs written for CUDA name their device by LOCAL_RANK: it is the device of their process on `xla` too."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

NUMBERS = """
import io, os
import torch, torch_xla
import torch.distributed as dist

rank = int(os.environ["LOCAL_RANK"])
assert torch.accelerator.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
torch.accelerator.set_device_index(rank)
device = torch.device("xla", rank)
assert torch.accelerator.current_device_index() == torch.xla.current_device() == rank
assert torch.ones(3).to(f"xla:{rank}").device == device
assert torch.ones(3).to(rank).device == torch.nn.Linear(2, 2).to(device).weight.device == device
assert torch.zeros(1, device="xla").device == torch_xla.device() == torch_xla.devices()[0] == device

dist.init_process_group(device_id=device)
assert dist.get_backend() == "xla"
x = torch.full((2,), float(rank), device=device, requires_grad=True)
(x * x).sum().backward()
assert x.grad.device == device and x.grad.tolist() == [2.0 * rank] * 2
dist.all_reduce(gathered := x.detach().clone())
assert gathered.tolist() == [1.0, 1.0] and gathered.device == device
try:
    torch.ones(2, device=torch.device("xla", 1 - rank))
except RuntimeError as error:
    expected = f"xla:{1 - rank} is the device of another process: this is process {rank} of 2 on this machine, and its"
    assert expected in str(error), error
else:
    raise AssertionError("it took the other process's device")
try:
    torch.xla.set_device(2)
except RuntimeError as error:
    assert f"xla:2 does not exist: this process has one device, xla:{rank} (LOCAL_RANK)" in str(error), error

# Equal seeds draw equal numbers in all processes, as on CUDA; states of all ordinals can be kept.
torch.manual_seed(3)
states = torch.xla.get_rng_state_all()
drawn = torch.rand(2, device=device)
both = [torch.empty_like(drawn) for _ in range(2)]
dist.all_gather(both, drawn)
assert torch.equal(both[0], both[1]) and len(states) == 2
torch.xla.set_rng_state_all(states)
assert torch.equal(torch.rand(2, device=device), drawn)
assert torch.equal(torch.rand(2, device=device, generator=None), torch.rand(2, device=device)) is False
with torch.random.fork_rng(devices=[rank], device_type="xla"):
    torch.rand(2, device=device)

# What another process has saved is loaded to the device of this one.
file = io.BytesIO()
torch.save(torch.ones(2, device="xla") * rank, file)
files = [None, None]
dist.all_gather_object(files, file.getvalue())
loaded = [torch.load(io.BytesIO(each)) for each in files]
assert [each.device for each in loaded] == [device] * 2 and loaded[1].tolist() == [1.0, 1.0]
assert torch.xla.get_device_properties(device).total_memory > 0 and torch.accelerator.memory_allocated(rank) > 0
torch.accelerator.synchronize(rank)
dist.barrier()
dist.destroy_process_group()
print("right", flush=True)
"""

TUTORIALS = """
import copy, os
import torch, torch_xla
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

rank = int(os.environ["LOCAL_RANK"])
device_type = torch.accelerator.current_accelerator().type
device = torch.device(f"{device_type}:{rank}")
torch.accelerator.set_device_index(rank)
dist.init_process_group(backend=dist.get_default_backend_for_device(device), device_id=device)


class ToyModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = torch.nn.Linear(10, 32)
        self.relu = torch.nn.ReLU()
        self.net2 = torch.nn.Linear(32, 6)

    def forward(self, x):
        return self.net2(self.relu(self.net1(x)))


def steps(model, batches, average):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, foreach=True)
    losses = []
    for batch in batches:
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss = loss.detach()
        if average:
            dist.all_reduce(loss, op=dist.ReduceOp.AVG)
        losses.append(loss.item())
    return torch.tensor(losses)


torch.manual_seed(5)
whole = ToyModel()
data = torch.randn(4, 8, 10)
fully, tensor = copy.deepcopy(whole), copy.deepcopy(whole)
wanted = steps(whole, data, False)

# FSDP2
fully.to(device)
for layer in (fully.net1, fully.net2):
    fully_shard(layer)
fully_shard(fully)
share = fully.net1.weight
assert isinstance(share, DTensor) and share.to_local().shape == (16, 10) and share.device == device
torch.testing.assert_close(steps(fully, data[:, rank::2].to(device), True), wanted)

# Tensor parallel
mesh = init_device_mesh(device_type, (2,))
tensor = parallelize_module(tensor.to(device), mesh, {"net1": ColwiseParallel(), "net2": RowwiseParallel()})
assert tensor.net2.weight.to_local().shape == (6, 16)
torch.testing.assert_close(steps(tensor, data.to(device), False), wanted)

# DTensor
divided = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])
assert divided.to_local().tolist() == [4.0 * rank + each for each in range(4)]
assert divided.to_local().device == device
assert (divided + 1).redistribute(mesh, [Replicate()]).to_local().sum().item() == 36
dist.destroy_process_group()
print("right", flush=True)
"""

# The tutorial of DistributedDataParallel: no torchrun, each process is told its rank.
SPAWNED = """
import os
import torch, torch_xla
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP


def demo_basic(rank, world_size, port):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = str(port)
    torch.accelerator.set_device_index  # asked for before the group is there
    dist.init_process_group("xla", rank=rank, world_size=world_size)
    torch.accelerator.set_device_index(rank)
    model = torch.nn.Linear(10, 5).to(rank)
    assert model.weight.device == torch.device("xla", rank)
    ddp = DDP(model, device_ids=[rank])
    ddp(torch.ones(4, 10).to(rank)).sum().backward()
    assert model.weight.grad.device == torch.device("xla", rank) and model.weight.grad[0, 0].item() == 4
    dist.destroy_process_group()
    print("right", flush=True)


if __name__ == "__main__":
    from torch.distributed.elastic.utils.distributed import get_free_port
    mp.spawn(demo_basic, args=(2, get_free_port()), nprocs=2)
"""

LAUNCHED = """
import torch, torch_xla
import torch_xla.core.xla_model as xm

def train(index):
    assert str(xm.xla_device()) == str(torch.ones(1, device="xla").device) == "xla:0"  # as PyTorch/XLA documents
    assert torch.accelerator.device_count() == 1 and xm.get_xla_supported_devices() == ["xla:0"]
    try:
        torch.ones(1, device="xla:1")
    except RuntimeError as error:
        assert "one device, xla:0 (the processes of torch_xla.launch each call their device so)" in str(error)
        print("right", flush=True)

if __name__ == "__main__":
    torch_xla.launch(train)
"""

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "command"),
    [
        pytest.param(NUMBERS, TORCHRUN, id="numbers"),
        pytest.param(TUTORIALS, TORCHRUN, id="tutorials"),
        pytest.param(SPAWNED, [], id="spawned"),
        pytest.param(LAUNCHED, [], id="launched"),
    ],
)
def test_each_process_is_right(program: str, command: list[str], tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(program)
    settings = {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "2", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *command, str(file)], env={**os.environ, **settings}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("right") == 2, done.stdout
