"""A unit of sharded parameters: whole while the module runs. Here the other of the group has what this process has."""

import copy
from collections.abc import Sequence

import pytest
import torch
from torch import nn

from torch_xla._engine.distributed.fsdp.fsdp_unit import Exchange, Manner, ShardedUnit
from torch_xla._engine.distributed.fsdp.module_sharding import divide
from torch_xla._engine.distributed.fsdp.parameter_shards import ShardLayout

COUNT = 2


def unit_of(module: nn.Module, flatten: bool = False, **manner: object) -> tuple[ShardedUnit, list[int]]:
    """A unit of two processes which have the same data, and how often it gathered."""
    wholes: list[torch.Tensor] = []
    gathered: list[int] = []

    def remembering(size: torch.Size) -> ShardLayout:
        return ShardLayout(size, COUNT)

    originals = {id(p): p.detach().clone() for p in module.parameters()}
    handles = divide(module, module, torch.device("xla"), remembering, 0, flatten)
    others = [
        torch.cat([originals[key].reshape(-1) for key in originals]) if flatten else each for each in originals.values()
    ][: len(handles)]
    wholes.extend(handle.layout.rows(whole.to("xla")) for handle, whole in zip(handles, others, strict=True))

    def gather(parts: Sequence[torch.Tensor], count: int, groups: object, mebibytes: float) -> list[torch.Tensor]:
        gathered.append(len(parts))
        return [
            torch.cat([part.reshape(1, -1), whole[1:].to(part.dtype)])
            for part, whole in zip(parts, wholes, strict=True)
        ]

    def reduce_scatter(
        rows: Sequence[torch.Tensor], count: int, groups: object, mebibytes: float
    ) -> list[torch.Tensor]:
        return [row[:1] * count for row in rows]

    return ShardedUnit(handles, Exchange((), COUNT, 0, gather, reduce_scatter), Manner(**manner)), gathered  # type: ignore[arg-type]


def first_half(whole: torch.Tensor) -> list[float]:
    flat = whole.detach().reshape(-1)
    return flat[: -(-flat.numel() // COUNT)].tolist()


@pytest.mark.parametrize("reshards", [True, False])
@pytest.mark.parametrize("flatten", [False, True])
def test_whole_parameters_are_shown_while_the_module_runs(flatten: bool, reshards: bool) -> None:
    plain = nn.Linear(2, 4)
    module = copy.deepcopy(plain)
    unit, gathered = unit_of(module, flatten, before=2.0)
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0], [0.0, 1.0]])
    with unit.in_forward(reshards):
        assert module.weight.shape == (4, 2)
        result = module(x.to("xla").requires_grad_())
    assert "weight" not in module.__dict__ and result.detach().cpu().shape == (3, 4)
    expected = plain(x)
    torch.testing.assert_close(result.detach().cpu(), expected.detach())
    result.square().sum().backward()
    expected.square().sum().backward()
    found = torch.cat([handle.shard.grad.cpu().reshape(-1) for handle in unit.handles])  # type: ignore[union-attr]
    if flatten:
        wanted = first_half(torch.cat([plain.weight.grad.reshape(-1), plain.bias.grad]))  # type: ignore[union-attr, list-item]
    else:
        wanted = first_half(plain.weight.grad) + first_half(plain.bias.grad)  # type: ignore[arg-type]
    torch.testing.assert_close(found, torch.tensor(wanted))
    assert len(gathered) == (2 if reshards else 1)  # once more for the backward pass, where notes were kept


def test_gradients_are_summed_up_until_they_are_reduced() -> None:
    module = nn.Linear(2, 2, bias=False)
    unit, _ = unit_of(module, before=2.0)
    for reduces in (False, True):
        unit.reduces = reduces
        with unit.in_forward(False):
            result = module(torch.ones(1, 2).to("xla"))
        result.sum().backward()
        shard = unit.handles[0].shard
        assert (shard.grad is None) is not reduces
    assert shard.grad is not None and shard.grad.tolist() == [2, 2]


def test_a_dtype_of_its_own_and_a_module_that_raises() -> None:
    module = nn.Linear(2, 2, bias=False)
    unit, _ = unit_of(module, compute_dtype=torch.bfloat16, before=2.0)
    with unit.in_forward(True):
        result = module(torch.ones(1, 2).to("xla").bfloat16())
        assert module.weight.dtype is torch.bfloat16
    result.float().sum().backward()
    assert unit.handles[0].shard.grad is not None and unit.handles[0].shard.grad.dtype is torch.float32
    with pytest.raises(KeyError), unit.in_forward(True):
        raise KeyError
    assert "weight" not in module.__dict__


def test_a_norm_of_gradients_is_that_of_all_parts() -> None:
    unit, _ = unit_of(nn.Linear(3, 2))
    unit.exchange.gather = lambda parts, *_: [torch.cat([part, part]) for part in parts]  # the other has the same parts
    plain = torch.ones(2, device="xla", requires_grad=True)
    parameters = [*(handle.shard for handle in unit.handles), plain]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 2.0)
    count = sum(COUNT * handle.shard.numel() for handle in unit.handles) + 2
    gradients = [parameter.grad for parameter in parameters]
    assert nn.utils.get_total_norm(gradients).item() == pytest.approx(2 * count**0.5)
    assert nn.utils.get_total_norm(gradients, 1.0).item() == pytest.approx(2 * count)
    assert nn.utils.get_total_norm(gradients, float("inf")).item() == 2
    assert nn.utils.get_total_norm(plain.grad).item() == pytest.approx(8**0.5)
    assert nn.utils.clip_grad_norm_(parameters, 1.0).item() == pytest.approx(2 * count**0.5)
    torch.testing.assert_close(plain.grad.cpu(), torch.full((2,), count**-0.5))
    gradients[0].fill_(torch.inf)
    with pytest.raises(RuntimeError, match="norm of order 2.0 for gradients from `parameters` is non-finite"):
        nn.utils.clip_grad_norm_(parameters, 1.0, error_if_nonfinite=True)
