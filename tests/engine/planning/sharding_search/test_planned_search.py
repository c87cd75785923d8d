"""The layout of a planned step."""

import pytest
import torch

from torch_xla._engine import compiler_options
from torch_xla._engine.planning.device_specs import DeviceSpec
from torch_xla._engine.planning.sharding_search import planned_search

SPEC = DeviceSpec("tiny", 10**9, {"f32": 1e9}, 1e9, 1e8)


def test_a_step_that_multiplies_no_parameter_of_the_model_is_refused_and_leaves_nothing_behind() -> None:
    model, x = torch.nn.Linear(4, 4).to("xla"), torch.ones(2, 4).to("xla")
    before = dict(compiler_options.chosen())
    for step in (lambda: x @ x.T, lambda: model.weight * 2):
        with pytest.raises(ValueError, match=r"^find_layout\(\): the step multiplies no parameter of this model"):
            planned_search.found(step, model, (), 2, SPEC, 1, 3)
    assert dict(compiler_options.chosen()) == before
    torch.testing.assert_close(model(x).cpu(), model.cpu()(x.cpu()))


@pytest.mark.slow
def test_the_best_of_a_few_layouts_is_found() -> None:
    model, x = torch.nn.Linear(64, 64, bias=False).to("xla"), torch.ones(8, 64).to("xla")
    found = planned_search.found(lambda: model(x), model, (), 2, SPEC, 1, 3)
    assert found.mesh_shape == (2,) and 1 <= len(found.trials) <= 3
    assert any("weight" in group.name for group in found.groups)
    with pytest.raises(ValueError, match="no such device is known"):
        planned_search.found(lambda: None, model, (), 2, "Abacus", 1, 3)
