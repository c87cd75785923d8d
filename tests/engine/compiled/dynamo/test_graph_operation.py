"""The device's part of a graph as one operation."""

import torch

import torch_xla
from torch_xla._engine.compiled.dynamo.graph_operation import GraphOperation
from torch_xla._engine.compiled.dynamo.host_device_split import split
from torch_xla._engine.compiled.loops.loop_bodies import pure_graph
from torch_xla._engine.ir.graph import decode
from torch_xla._engine.tensor.device import current_index, device_at
from torch_xla._engine.tensor.storage import wrap


def operation(function, *examples: torch.Tensor) -> GraphOperation:  # type: ignore[no-untyped-def]
    return GraphOperation(split(pure_graph(function, list(examples)), "test"))


def test_a_graph_is_one_operation_whose_plan_equal_calls_share() -> None:
    x, y = torch.ones(2, 3).to("xla"), torch.arange(3.0).to("xla")
    torch_xla.sync()
    made = operation(lambda x, y: (x * y + 1, x.t().clone()), x, y)
    results = [wrap(value) for value in made.record([x, y])]
    again = [wrap(value) for value in made.record([x + 1, y])]
    plans = [each.plan for each in decode(device_at(current_index()).tape.code)[1] if "compiled::" in str(each.plan.op)]
    assert len(plans) == 2 and plans[0] is plans[1] and plans[0].op.startswith("compiled::test_")
    assert results[0].tolist() == [[1, 2, 3]] * 2 and again[0].tolist() == [[1, 3, 5]] * 2
    assert results[1].shape == (3, 2) and again[1].tolist() == [[2, 2]] * 3
    inside = plans[0].inside and plans[0].inside()
    assert inside is not None and len(inside.inputs) == 2 and len(inside.outputs) == 2


def test_equal_graphs_share_their_rule_and_tensors_of_the_host_are_uploaded() -> None:
    x = torch.ones(3).to("xla")
    one, other = (operation(lambda x: (x.exp() * 3,), x) for _ in range(2))
    assert one._rule is other._rule
    (value,) = one.record([torch.zeros(3)])
    assert wrap(value).tolist() == [3, 3, 3]


def test_draws_are_others_in_each_call_and_each_operator_alone_gives_the_same() -> None:
    x = torch.full((64,), 0.5).to("xla")
    random = operation(lambda x: (torch.bernoulli(x), torch.bernoulli(x)), x)
    first, second = (wrap(value).tolist() for value in random.record([x]))
    third = wrap(random.record([x])[0]).tolist()
    assert first != second and first != third
    plain = operation(lambda x: (x.softmax(0), x.sum()), x)
    for whole, apart in zip(plain.record([x]), plain.record_each([x]), strict=True):
        torch.testing.assert_close(wrap(whole).cpu(), wrap(apart).cpu())
