import gc

import pytest
import torch

import torch_xla
from tests.support.held import held_by_others
from torch_xla._engine.runtime import abstract_devices
from torch_xla._engine.runtime.abstract_devices import PlannedBuffer
from torch_xla.debug import NotComputed, plan


def _state(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[list[float]]:
    tensors = [*model.parameters(), *(t for s in optimizer.state.values() for t in s.values() if t.dim())]
    return [tensor.flatten().tolist() for tensor in tensors]


def test_a_plan_leaves_nothing_behind() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)).to("xla")
    optimizer = torch.optim.Adagrad(model.parameters(), foreach=False)

    def step() -> None:
        model(torch.randn(8, 4, device="xla")).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    pending = torch.ones(3, device="xla") * 2
    torch_xla.sync()
    before = _state(model, optimizer), dict(optimizer.state[model[0].weight]), torch.get_rng_state()
    count = optimizer.state[model[0].weight]["step"].item()
    pending += 1
    torch.manual_seed(3)
    expected = torch.rand(2, device="xla").tolist(), torch.rand(2).tolist()
    torch.manual_seed(3)
    plan(step)
    assert (torch.rand(2, device="xla").tolist(), torch.rand(2).tolist()) == expected
    assert _state(model, optimizer) == before[0] and optimizer.state[model[0].weight]["step"].item() == count
    assert pending.tolist() == [3, 3, 3] and all(p.grad is None for p in model.parameters())
    gc.collect()
    assert not list(abstract_devices.living)
    step()
    assert _state(model, optimizer) != before[0]


def test_gradients_that_a_step_lets_go_of_are_not_held_beside_those_that_it_makes() -> None:
    weight = torch.ones(64, 64, device="xla", requires_grad=True)
    other = torch.ones(4, device="xla", requires_grad=True)
    kept = torch.full((8,), 3.0, device="xla")
    other.grad = kept[2:6]

    def step() -> None:
        weight.grad = other.grad = None
        (weight * 2).sum().backward()

    step()
    other.grad = kept[2:6]
    torch_xla.sync()
    others = held_by_others()
    (program,) = plan(step, steps=1).programs
    assert program.held.all < others.all + 64 * 64 * 4  # the new gradient replaces the old one
    assert weight.grad is not None and weight.grad.eq(2).all() and weight.grad.shape == (64, 64)
    assert other.grad is not None and other.grad.tolist() == [3.0] * 4 and other.grad.storage_offset() == 2


def test_a_model_that_was_only_recorded_stays_so() -> None:
    others = held_by_others()
    with torch.device("xla"):
        torch.manual_seed(1)
        model = torch.nn.Linear(300, 300)
    found = plan(lambda: model(torch.ones(2, 300, device="xla")).sum().backward(), steps=1)
    assert found.programs[0].held.parameters - others.parameters == (300 * 300 + 300) * 4
    assert model.weight.untyped_storage().value.buffer is None  # type: ignore[attr-defined]
    assert model.weight.std().item() == pytest.approx(1 / 30, rel=0.05)


def test_a_run_finds_the_planned_program_compiled() -> None:
    weight = torch.full((3, 5), 2.0, device="xla")
    torch_xla.sync()

    def step() -> None:
        weight.mul_(3).add_(1.25)
        torch_xla.sync()

    plan(step)
    with torch_xla.debug.no_recompile():
        step()
    assert weight[0, 0].item() == 7.25


def test_reading_is_refused_unless_the_value_follows_from_the_program() -> None:
    weight = torch.ones(3, device="xla")
    kept = []

    def reads() -> None:
        weight.sum().item()

    def decides() -> None:
        # As a mask does that Transformers looks at: nothing but numbers of the program is in it.
        if (torch.arange(4, device="xla").diff() == 1).all():
            kept.append(weight * 2)
        assert torch.tensor([1.5, 2.0]).to("xla").tolist() == [1.5, 2.0]

    with pytest.raises(NotComputed, match=r"size \[\] and dtype float32 were asked for.*only planned"):
        plan(reads)
    assert weight.tolist() == [1, 1, 1]
    plan(decides, steps=1)
    assert len(kept) == 1
    with pytest.raises(NotComputed, match="use no tensor afterwards"):
        kept[0].tolist()
    with pytest.raises(NotComputed, match="use no tensor afterwards"):
        (kept[0] + 1).tolist()
    with pytest.raises(RuntimeError, match="cannot be nested"):
        plan(lambda: plan(decides))
    assert (weight + 1).tolist() == [2, 2, 2]


def test_a_function_that_is_replayed_can_be_planned_and_goes_on() -> None:
    others = held_by_others().state

    def trained(device: str, planned_after: int) -> torch.Tensor:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 4).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step() -> None:
            model(torch.ones(2, 4, device=device)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        call = torch_xla.compile(step) if device == "xla" else step
        for number in range(8):
            if number == planned_after:
                assert plan(call).programs[0].held.state - others == (4 * 4 + 4) * 4
            call()
        return model.weight.detach().cpu()

    torch.testing.assert_close(trained("xla", 5), trained("cpu", -1))


def test_a_planned_buffer_has_no_elements() -> None:
    (device,) = abstract_devices.virtual_devices(1)
    buffer = PlannedBuffer((2, 3), "float32", torch_xla_sharding(device))
    assert (buffer.ndim, buffer.nbytes, buffer.is_deleted()) == (2, 24, False)
    assert repr(buffer) == "<planned [2, 3] float32>" and not hasattr(buffer, "__cuda_array_interface__")
    with pytest.raises(NotComputed):
        _ = buffer.addressable_shards


def torch_xla_sharding(device: object) -> object:
    from jax.sharding import SingleDeviceSharding

    return SingleDeviceSharding(device)  # type: ignore[arg-type]
