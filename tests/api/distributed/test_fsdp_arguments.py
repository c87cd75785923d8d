"""Each argument of `XlaFullyShardedDataParallel`, with two processes, against the same computed by hand in one."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.runtime as xr
from tests.support.fleet import fleet_of
from torch_xla.amp import GradScaler
from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP
from torch_xla.distributed.fsdp import full_state, load_full_state

COUNT = 2


class Network(nn.Module):
    """Remembers in which dtypes it was computed."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(6, 10, bias=False), nn.BatchNorm1d(10), nn.Linear(10, 3)
        self.register_buffer("shift", torch.linspace(-1, 1, 6))
        self.register_buffer("count", torch.tensor(3))
        self.seen: list[torch.dtype] = []

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        self.seen = [x.dtype, self.outer.weight.dtype, self.shift.dtype, self.count.dtype]
        hidden = self.inner(x + self.shift)
        return {"out": self.outer(torch.tanh(self.norm(hidden))) * (1.0 if scale is None else scale)}


def network(seed: int = 0) -> Network:
    torch.manual_seed(seed)
    return Network()


def data(rank: int, step: int = 0) -> torch.Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * step + rank))


def loss_of(result: dict[str, torch.Tensor]) -> torch.Tensor:
    return (result["out"].float() - 0.5).square().sum()


def gradients_of(model: FSDP) -> dict[str, torch.Tensor]:
    """Whole gradients, by the names of the parameters."""
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.grad if parameter.grad is not None else torch.full_like(parameter, torch.nan))
    found = full_state(model)["model"]
    with torch.no_grad():
        for parameter, kept in zip(model.parameters(), before, strict=True):
            parameter.copy_(kept)
    return {name: found[name] for name, _ in Network().named_parameters()}


def expected(ranks: Any, dtype: torch.dtype | None = None, steps: int = 1, seed: int = 0) -> dict[str, torch.Tensor]:
    """The mean over `ranks` of the gradients, summed over steps, of parameters in `dtype`."""
    total: dict[str, torch.Tensor] = {}
    for rank in ranks:
        for step in range(steps):
            model = network(seed)
            given = {name: each.detach().to(dtype).requires_grad_() for name, each in model.named_parameters()}
            buffers = {
                name: each.to(dtype) if each.is_floating_point() else each for name, each in model.named_buffers()
            }
            x = data(rank, step)
            loss_of(functional_call(model, {**given, **buffers}, (x.to(dtype) if dtype else x,))).backward()
            for name, parameter in given.items():
                total[name] = total.get(name, 0) + parameter.grad.float() / len(ranks)
    return total


def is_close(found: dict[str, torch.Tensor], right: dict[str, torch.Tensor], tolerance: float) -> bool:
    for name, tensor in right.items():
        torch.testing.assert_close(found[name].float(), tensor, rtol=tolerance, atol=tolerance * tensor.abs().max())
    return set(found) == set(right)


def one_pass(model: FSDP, step: int = 0) -> None:
    loss_of(model(data(xr.global_ordinal(), step).to("xla"))).backward()


def plain() -> bool:
    model = FSDP(network())
    one_pass(model)
    assert not xm._fetch_gradients(torch.optim.SGD(model.parameters()))  # nothing that a caller should average again
    return is_close(gradients_of(model), expected(range(COUNT)), 1e-5)


def half_precision() -> bool:
    right = expected(range(COUNT), torch.bfloat16)
    for more in ({}, {"fp32_reduce_scatter": True}, {"flatten_parameters": True}, {"shard_param_on_dim_0": True}):
        model = FSDP(network(), compute_dtype=torch.bfloat16, **more)
        one_pass(model)
        assert {parameter.grad.dtype for parameter in model.parameters()} == {torch.float32}
        assert model.module.module.seen == [torch.bfloat16] * 3 + [torch.int64]
        is_close(gradients_of(model), right, 4e-2)
    return True


def sums_in_float32() -> bool:
    """A small gradient beside a large one of another process is lost in a sum of bfloat16, and not in float32."""
    found = []
    for exact in (False, True):
        model = FSDP(nn.Linear(1, 1, bias=False), compute_dtype=torch.bfloat16, fp32_reduce_scatter=exact)
        x = torch.tensor([[1024.0 if xr.global_ordinal() == 0 else 1.0]], device="xla")
        model(x).sum().backward()
        found.append(full_gradient(model).item())
    return found == [512.0, 512.5]


def full_gradient(model: FSDP) -> torch.Tensor:
    (parameter,) = model.parameters()
    with torch.no_grad():
        parameter.copy_(parameter.grad)
    return full_state(model)["model"]["weight"]


def clipped_by_pytorch() -> bool:
    """The norm that PyTorch's own function finds, and clips by, is that of all parts; with groups, of their parts."""
    rank = xr.global_ordinal()
    alone = {"sharding_groups": [[0], [1]], "sharding_rank": 0, "sharding_world_size": 1}
    for more, ranks in (({}, range(COUNT)), ({"flatten_parameters": True}, range(COUNT)), (alone, [rank])):
        model = FSDP(network(), **more)
        one_pass(model)
        right = expected(ranks)
        norm = torch.stack([each.norm() for each in right.values()]).norm()
        found = nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        torch.testing.assert_close(found.cpu(), norm)
        is_close(gradients_of(model), {name: each * 0.25 / (norm + 1e-6) for name, each in right.items()}, 1e-5)
    return True


def overflow_of_one() -> bool:
    """A step is skipped by all processes if a gradient overflowed in the part of one."""
    model = FSDP(nn.Linear(1, 256, bias=False))
    (part,) = model.parameters()
    before = part.detach().clone()
    for fused in (False, True):
        optimizer, scaler = torch.optim.SGD([part], lr=0.1, fused=fused), GradScaler(init_scale=4.0)
        scale = torch.ones(256, device="xla")
        scale[255] = torch.inf  # the last row of the weight, which process 1 holds
        scaler.scale((model(torch.ones(1, 1, device="xla")) * scale).sum()).backward()
        assert torch.isfinite(part.grad).all().item() == (xr.global_ordinal() == 0)
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == 2.0 and torch.equal(part, before)
        optimizer.zero_grad()
    return True


class Shifted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.ones(3))
        self.register_buffer("count", torch.tensor(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.shift


def buffers_in_their_own() -> bool:
    x = torch.ones(3, device="xla")
    model = FSDP(Shifted(), compute_dtype=torch.bfloat16)
    assert model(x).dtype == torch.bfloat16
    model = FSDP(Shifted(), compute_dtype=torch.bfloat16, buffer_dtype=torch.float32)
    assert model(x).dtype == torch.float32 and model.module.count.dtype == torch.int64
    model = FSDP(Shifted(), buffer_dtype=torch.float16)
    return model.module.shift.dtype == torch.float16 and model(x).dtype == torch.float32


def groups() -> bool:
    rank = xr.global_ordinal()
    alone = FSDP(network(), sharding_groups=[[0], [1]], sharding_rank=0, sharding_world_size=1)
    one_pass(alone)
    assert xm._fetch_gradients(torch.optim.SGD(alone.parameters()))
    is_close(gradients_of(alone), expected([rank]), 1e-5)
    turned = FSDP(network(), sharding_groups=[[1, 0]], sharding_rank=1 - rank, sharding_world_size=2)
    one_pass(turned)
    is_close(gradients_of(turned), expected(range(COUNT)), 1e-5)
    with pytest.raises(ValueError, match="sharding_groups needs sharding_rank"):
        FSDP(network(), sharding_groups=[[0, 1]])
    with pytest.raises(ValueError, match=f"is not the place of this process: that is {1 - rank} of 2"):
        FSDP(network(), sharding_groups=[[1, 0]], sharding_rank=rank, sharding_world_size=2)
    return True


def summed_later() -> bool:
    for more in ({}, {"flatten_parameters": True}, {"reshard_after_forward": False}):
        inner = network()
        inner.inner = FSDP(inner.inner, **more)
        model = FSDP(inner, **more)
        with model.no_sync():
            one_pass(model, 0)
            assert all(parameter.grad is None for parameter in model.parameters())
            one_pass(model, 1)
        one_pass(model, 2)
        is_close(gradients_of(model), expected(range(COUNT), steps=3), 1e-5)
        with pytest.raises(RuntimeError, match="outermost"), model.module.module.inner.no_sync():
            pass
    return True


def added_up() -> bool:
    """Without `no_sync` gradients of several passes add up as well, and two passes may come before one backward."""
    model = FSDP(network())
    one_pass(model, 0)
    one_pass(model, 1)
    is_close(gradients_of(model), expected(range(COUNT), steps=2), 1e-5)
    model = FSDP(network())
    both = [loss_of(model(data(xr.global_ordinal(), step).to("xla"))) for step in range(2)]
    sum(both).backward()
    return is_close(gradients_of(model), expected(range(COUNT), steps=2), 1e-5)


def from_nothing() -> bool:
    torch.manual_seed(xr.global_ordinal())
    with torch.device("meta"):
        empty = Network()
    values = network().state_dict()

    def fill(module: nn.Module) -> None:
        names = {each: name for name, each in empty.named_modules()}
        prefix = names[module] + "." if names[module] else ""
        module.to_empty(device="cpu", recurse=False)
        with torch.no_grad():
            for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
                tensor.copy_(values[prefix + name])

    model = FSDP(empty, param_init_fn=fill)
    one_pass(model)
    is_close(gradients_of(model), expected(range(COUNT)), 1e-5)
    torch.manual_seed(7)  # the same in all processes
    with torch.device("meta"):
        layers = nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4))
    whole = full_state(FSDP(layers))["model"]
    assert whole["0.weight"].abs().max() <= 6**-0.5 and whole["0.weight"].abs().min() > 0
    with torch.device("meta"):
        bare = nn.Module()
        bare.weight = nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match=r"no\s+reset_parameters\(\); give param_init_fn"):
        FSDP(bare)
    return True


def what_only_changes_how() -> bool:
    for arguments in (
        {"coalesce_all_gather_ops": True}, {"reduce_scatter_bucket_size_mb": 1},
        {"reduce_scatter_bucket_size_mb": None}, {"pin_layout_in_collective_ops": False},
        {"execute_sharding_on_init": False}, {"_shard_size_multiple": 1},
        {"optimization_barrier_in_forward": False, "optimization_barrier_in_backward": False},
        {"sync_on_finalization": True}, {"disable_reshard_on_root": False}, {"reshard_after_forward": False},
        {"_use_xla_patched_linear": False}, {"_debug_print": True, "_debug_msg": "here"},
    ):  # fmt: skip
        model = FSDP(network(), **arguments)
        one_pass(model)
        is_close(gradients_of(model), expected(range(COUNT)), 1e-5)
    return True


def divided_differently() -> bool:
    model = FSDP(network())
    model.set_gradient_divide_factors(1.0, 1.0, True)
    one_pass(model)
    total = {name: COUNT * gradient for name, gradient in expected(range(COUNT)).items()}
    return is_close(gradients_of(model), total, 1e-5)


def without_messages() -> bool:
    """The dummies do not communicate: each process has its own numbers in the right shapes."""
    names = [
        "_debug_dummy_all_gather_op", "_debug_dummy_all_reduce_op", "_debug_dummy_reduce_scatter_op",
        "_debug_dummy_optimization_barrier_op",
    ]  # fmt: skip
    before = met.counter_value("ComparedCollectives") or 0
    model = FSDP(network(), **dict.fromkeys(names, True))
    one_pass(model)
    model.clip_grad_norm_(1.0)
    torch_xla.sync()
    assert (met.counter_value("ComparedCollectives") or 0) == before
    assert all(parameter.grad.shape == parameter.shape for parameter in model.parameters())
    model = FSDP(network(), _debug_dummy_forward_pass=True)
    model(data(0).to("xla")).backward()
    right = {name: torch.full(each.shape, 1 / each.numel()) for name, each in network().named_parameters()}
    return is_close(gradients_of(model), right, 1e-5)


def states() -> bool:
    """`state_dict` gives what `load_state_dict` takes, and a frozen model is evaluated without gradients."""
    one, other = FSDP(network(1)), FSDP(network(2))
    other.load_state_dict(one.state_dict())
    x = data(0).to("xla")
    one.eval(), other.eval()
    with torch.no_grad():
        same = torch.equal(one(x)["out"].cpu(), other(x)["out"].cpu())
    scaled = one(x, scale=torch.tensor(2.0, device="xla"))["out"].cpu()
    torch.testing.assert_close(scaled, 2 * network(1).eval()(data(0))["out"])
    frozen = network()
    frozen.requires_grad_(False)
    assert not FSDP(frozen)(x)["out"].requires_grad
    load_full_state(other, {"model": network().state_dict()})
    other.train()
    one_pass(other)
    return same and is_close(gradients_of(other), expected(range(COUNT)), 1e-5)


CASES = [
    sums_in_float32, plain, half_precision, groups, summed_later, buffers_in_their_own, added_up, from_nothing,
    what_only_changes_how, divided_differently, without_messages, states, clipped_by_pytorch, overflow_of_one,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_arguments(case: Callable[[], bool]) -> None:
    assert fleet_of(COUNT).run(case) == [True] * COUNT
