"""Inputs of programs are called what the user calls them, and looking for the names changes nothing."""

import gc
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torch_xla
import torch_xla.debug as debug
from torch_xla._engine.metrics.observers import observers
from torch_xla._engine.tensor.storage import value_of
from torch_xla._engine.tensor.variable_names import name_buffers


def on_device(*shape: int) -> Tensor:
    tensor = torch.ones(*shape).to("xla")
    torch_xla.sync()
    return tensor


def buffer_of(tensor: Tensor) -> Any:
    return value_of(tensor).buffer


@dataclass
class Batch:
    tokens: Tensor
    masks: dict[str, Tensor]


def test_variables_containers_attributes_and_parameters_have_names() -> None:
    plain, batch = on_device(2), Batch(on_device(3), {"causal": on_device(4)})
    pair = [on_device(5), on_device(6)]
    model = nn.Sequential(nn.Linear(7, 8)).to("xla")
    model[0].bias.grad = on_device(8)
    wanted = [plain, batch.tokens, batch.masks["causal"], pair[1], model[0].weight, model[0].bias.grad]
    buffers = [buffer_of(tensor) for tensor in wanted]
    del wanted
    assert name_buffers(buffers) == (
        "plain",
        "batch.tokens",
        "batch.masks['causal']",
        "pair[1]",
        "model.0.weight",
        "model.0.bias.grad",
    )


def test_a_gradient_is_not_read_while_another_thread_may_look_at_it() -> None:
    model = nn.Linear(7, 8).to("xla")
    model.bias.grad = on_device(8)
    buffers = [buffer_of(model.bias), buffer_of(model.bias.grad)]
    is_there, is_over = threading.Event(), threading.Event()

    def other() -> None:
        is_there.set()
        is_over.wait()

    thread = threading.Thread(target=other)
    thread.start()
    is_there.wait()
    assert name_buffers(buffers) == ("model.bias", "")
    is_over.set()
    thread.join()
    assert name_buffers(buffers) == ("model.bias", "model.bias.grad")


def test_looking_for_names_keeps_nothing_of_its_callers() -> None:
    class Kept:
        pass

    def search() -> weakref.ref[Kept]:
        kept, model = Kept(), nn.Linear(7, 8).to("xla")
        name_buffers([buffer_of(model.bias), object()])
        return weakref.ref(kept)

    gc.disable()
    try:
        assert search()() is None
    finally:
        gc.enable()


def test_the_innermost_variable_names_a_value_and_an_outer_one_what_is_gone() -> None:
    def inner(renamed: Tensor, buffers: list[Any]) -> tuple[str, ...]:
        assert renamed.shape == (2,)
        return name_buffers(buffers)

    first, second = on_device(2), on_device(3)
    assert inner(first, [buffer_of(first), buffer_of(second)]) == ("renamed", "second")


def test_states_of_optimizers_have_names() -> None:
    model = nn.Linear(3, 2).to("xla")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(on_device(1, 3)).sum().backward()
    optimizer.step()
    torch_xla.sync()
    state = optimizer.state[model.bias]["exp_avg_sq"]
    buffers = [buffer_of(state)]
    del state
    assert name_buffers(buffers) == ("optimizer.state[1]['exp_avg_sq']",)


def test_tensors_as_keys_are_not_read_for_a_name() -> None:
    model = nn.Linear(3, 2).to("xla")
    optimizers = {p: torch.optim.SGD([p], 0.1) for p in model.parameters()}
    values = {p: on_device(2 + i) for i, p in enumerate(model.parameters())}

    def step_at_once(parameter: Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    hooks = [p.register_post_accumulate_grad_hook(step_at_once) for p in model.parameters()]
    before = [p.detach().cpu() for p in model.parameters()]
    x = torch.arange(12.0).reshape(4, 3)
    for _ in range(2):
        model(x.to("xla")).pow(2).mean().backward()
        torch_xla.sync()
    expected = nn.Linear(3, 2)
    expected.load_state_dict(dict(zip(("weight", "bias"), before, strict=True)))
    optimizer = torch.optim.SGD(expected.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        expected(x).pow(2).mean().backward()
        optimizer.step()
    torch.testing.assert_close(
        [p.detach().cpu() for p in model.parameters()], [p.detach() for p in expected.parameters()]
    )
    assert name_buffers([buffer_of(each) for each in values.values()])[0] == "values[<Parameter>]"
    for hook in hooks:
        hook.remove()  # they refer to the parameters, in a hidden cycle


def test_what_no_variable_leads_to_has_no_name() -> None:
    assert name_buffers([buffer_of(on_device(9))]) == ("",)


def test_the_search_keeps_nothing_alive_and_leaves_locals_as_they_are() -> None:
    tensor = on_device(2)
    mine = locals()
    buffers = [buffer_of(tensor)]
    value = value_of(tensor)
    assert name_buffers(buffers) == ("tensor",)
    assert mine["tensor"] is tensor
    del mine

    def scoped() -> None:
        inside = tensor
        name_buffers(buffers)
        assert inside is tensor

    before = sys.getrefcount(value)
    scoped()
    assert sys.getrefcount(value) == before


def test_a_proxy_is_not_woken() -> None:
    class Proxy:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("there is no request")

        @property
        def __class__(self) -> type:  # type: ignore[override]
            raise RuntimeError("there is no request")

    proxy, tensor = Proxy(), on_device(2)
    assert name_buffers([buffer_of(tensor)]) == ("tensor",)
    with pytest.raises(RuntimeError):
        isinstance(proxy, int)


class NoText:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


class NoLength(dict[str, int]):
    def __len__(self) -> int:
        raise RuntimeError("no length")


class NoParameters(nn.Module):
    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no parameters")


class NotInitialized(torch.optim.Optimizer):
    def __init__(self) -> None:
        pass


@pytest.mark.parametrize("make", [lambda: {NoText(): 1}, NoLength, NoParameters, NotInitialized])
def test_an_object_that_does_not_let_itself_be_looked_at_costs_no_other_name(make: Callable[[], Any]) -> None:
    # The report lists the lines that hold most: with the little that this line holds, what other tests keep hides it.
    a_stranger, tensor = make(), on_device(1024, 1024)
    assert name_buffers([buffer_of(tensor)]) == ("tensor",)
    assert "such as tensor" in debug.report()
    del a_stranger


def test_a_search_that_fails_is_no_reason_not_to_compile(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(buffers: Any) -> tuple[str, ...]:
        raise ValueError("no")

    monkeypatch.setattr(observers, "name_buffers", fail)
    assert (torch.ones(3, 29, device="xla") * 2).sum().item() == 174
    assert "the names of the inputs could not be found" in caplog.text
