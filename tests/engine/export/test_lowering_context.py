"""A computation as a module of HLO, whose parameters are tensors that can be asked for."""

import json

import pytest
import torch

from torch_xla._engine.compat.names import jax as private
from torch_xla._engine.export.lowering_context import LoweringContext
from torch_xla._engine.metrics import counters
from torch_xla._engine.tensor.storage import value_of


def built() -> tuple[LoweringContext, torch.Tensor, torch.Tensor, torch.Tensor]:
    a, b = torch.arange(3.0).to("xla"), torch.ones(3).to("xla")
    c = b * a - b
    context = LoweringContext()
    context.build([c, a])
    return context, a, b, c


def test_the_module_computes_the_tensors_and_nothing_runs() -> None:
    context, _, _, c = built()
    assert "multiply(" in context.hlo_text() and "subtract(" in context.hlo_text()
    assert private.stablehlo_of(context.hlo()).startswith(b"ML\xefR")
    assert not counters.value_of("UncachedCompile") and c.tolist() == [-1, 0, 1]


def test_parameters_are_known_by_their_numbers() -> None:
    context, a, b, c = built()
    numbers = context.tensor_parameter_id(a), context.tensor_parameter_id(b)
    assert sorted(numbers) == [0, 1] and context.tensor_parameter_id(c) == -1
    on_host, on_device = context.parameter_id_tensor_mapping(), context.device_parameter_id_tensor_mapping()
    assert on_host[numbers[0]].tolist() == [0, 1, 2] and on_host[0].device.type == "cpu"
    assert value_of(on_device[numbers[1]]) is value_of(b)


def test_its_name_can_be_chosen() -> None:
    context = LoweringContext()
    assert context.get_name_string() == "computation"
    context.set_name_string("step")
    assert context.get_name_string() == "step" and LoweringContext("loss").get_name_string() == "loss"


def test_its_name_is_the_modules() -> None:
    x = torch.ones(2).to("xla")
    context = LoweringContext("MyModule")
    context.build([x + 1])
    assert (
        context.hlo_text().startswith("HloModule MyModule, ") and json.loads(context.hlo_json())["name"] == "MyModule"
    )
    context.set_name_string(r"other\1")
    assert context.hlo_text().startswith(r"HloModule other\1, ") and b"other" in context.hlo()


def test_every_input_on_the_device_is_a_parameter() -> None:
    scalars = [torch.tensor(float(number), device="xla") for number in range(5)]
    model, x = torch.nn.Linear(3, 2).to("xla"), torch.randn(4, 3).to("xla")
    context = LoweringContext("inputs")
    context.build([sum(scalars) + model(x)])
    numbers = [context.tensor_parameter_id(each) for each in (*scalars, *model.parameters(), x)]
    assert sorted(numbers) == list(range(8))
    tensors = context.parameter_id_tensor_mapping()
    for number, tensor in zip(numbers, (*scalars, *model.parameters(), x), strict=True):
        assert tensors[number].equal(tensor.detach().cpu())
    parameters = [line for line in context.hlo_text().splitlines() if " parameter(" in line]
    assert len(parameters) == 8


def test_what_is_asked_too_early_or_of_another_device_is_refused() -> None:
    context = LoweringContext()
    for ask in (context.hlo, context.hlo_text, context.hlo_json):
        with pytest.raises(
            RuntimeError, match=r"^this LoweringContext holds no computation yet: call build\(tensors\)"
        ):
            ask()
    with pytest.raises(RuntimeError, match="^Expected XLA tensor. Got: torch.FloatTensor$"):
        context.build([torch.ones(1)])
