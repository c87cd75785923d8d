"""The text of a program says all that it computes, in words that another process would use."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch

from torch_xla._engine.compile import graph_fingerprint
from torch_xla._engine.ir.call_plan import Operand, Plan
from torch_xla._engine.ir.graph import Graph, Operation
from torch_xla._engine.ir.side_effects import collective
from torch_xla._engine.ir.value_spec import spec_of

SPEC, OTHER = spec_of((2,), (1,), torch.float32), spec_of((2,), (1,), torch.int32)
PLAN = Plan(torch.ops.aten.sin.default, ((Operand(0),), {}), (SPEC,), (), (SPEC,))

OTHER_PLANS: dict[str, Any] = {
    "op": torch.ops.aten.cos.default,
    "arguments": ((Operand(0),), {"more": 1}),
    "operands": (OTHER,),
    "numbers": (float,),
    "outputs": (OTHER,),
    "structure": (1,),
    "compute_dtype": np.dtype(np.float64),
    "draws": 1,
    "replaces": (0,),
    "effect": collective(((0, 1),)),
}


def graph(plan: Plan = PLAN) -> Graph:
    """One operation on one input."""
    return Graph((SPEC,), (Operation(plan, (0,), 0, -1, 1, 0),), (1,))


def test_each_part_of_a_plan_alone_gives_another_text() -> None:
    # `inside` describes the operation in another way; its name and arguments identify it.
    assert OTHER_PLANS.keys() == {field.name for field in fields(Plan)} - {"inside"}
    texts = {graph_fingerprint.text_of(graph().code)}
    for field, other in OTHER_PLANS.items():
        texts.add(graph_fingerprint.text_of(graph(replace(PLAN, **{field: other})).code))
    assert len(texts) == 1 + len(OTHER_PLANS)
    assert graph_fingerprint.text_of(graph(replace(PLAN)).code) == graph_fingerprint.text_of(graph().code)


@pytest.mark.parametrize("nameless", ("op", "arguments"))
def test_what_only_this_process_can_name_has_no_name(nameless: str) -> None:
    def of_process(serial: int) -> Graph:
        own: dict[str, Any] = {"op": f"jax::f_{serial} at 0x0", "arguments": ((Operand(0), object()), {})}
        return graph(replace(PLAN, **{nameless: own[nameless]}))

    one, other = of_process(0), of_process(12)
    assert graph_fingerprint.is_named(graph()) and not graph_fingerprint.is_named(one)
    with pytest.raises(graph_fingerprint.Nameless):
        graph_fingerprint.text_of(one.code)
    # The part of the names that is equal in every process distinguishes it from other names.
    texts = [graph_fingerprint.text_of(each.code, strict=False) for each in (one, other, graph())]
    assert texts[0] == texts[1] != texts[2]
