"""A graph is the same after it was pickled, and says nothing of values."""

import torch
from torch.fx import symbolic_trace

from torch_xla._engine.compat.names import torch_saved_graphs
from torch_xla._engine.compat.names.torch_dynamo import FakeTensorMode, ShapeEnv


def doubled(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * 2


def test_a_graph_is_loaded_as_it_was_saved() -> None:
    module = symbolic_trace(doubled)
    with FakeTensorMode(shape_env=ShapeEnv()):
        example = torch.empty(3, device="xla")
    for node in module.graph.nodes:
        node.meta["example_value"] = torch.ones(3, requires_grad=True) * 2  # is no leaf, and cannot be pickled
        node.meta["stack_trace"] = "kept?"
    vars(module)["_param_name_to_source"] = {}
    with torch_saved_graphs.unpickled(torch_saved_graphs.pickled(module, [example, 4])) as (loaded, examples):
        assert loaded.code == module.code and not hasattr(loaded, "_param_name_to_source")
        assert (examples[0].shape, examples[0].device.type, examples[1]) == ((3,), "xla", 4)
        assert all("example_value" not in node.meta for node in loaded.graph.nodes)
    torch.testing.assert_close(loaded(torch.ones(3)), doubled(torch.ones(3)))


def test_aotautograd_is_told_to_make_no_entry() -> None:
    assert not torch_saved_graphs.is_saving()
    with torch_saved_graphs.functorch_config.patch(bundled_autograd_cache=True):
        assert torch_saved_graphs.is_saving()
        with torch_saved_graphs.without_entries():
            assert not torch_saved_graphs.is_saving()
