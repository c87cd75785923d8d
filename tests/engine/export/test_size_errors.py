"""The error of an export for an operator that does not support changing sizes."""

from typing import Any

import pytest
import torch
from torch.fx import GraphModule

from torch_xla._engine.export import size_errors
from torch_xla._engine.export.exported_program import Options, convert


class Calling(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


REFUSED = {
    "traced": (lambda x: x.norm(x.shape[0]), "aten.linalg_vector_norm.default"),
    "written": (lambda x: torch.linalg.qr(x).R, "aten.linalg_qr.default"),
    "by JAX in words of its own": (lambda x: torch.fft.fft(x, dim=0).abs(), "aten._fft_r2c.default"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_operator_without_a_form_is_named(name: str) -> None:
    function, operator = REFUSED[name]
    exported = torch.export.export(Calling(function), (torch.ones(4, 6),), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    words = (
        rf"{operator} \(.*test_size_errors.py:\d+ in .*\) has no form for sizes that may change here. It was given a"
    )
    with pytest.raises(NotImplementedError, match=rf"{words} tensor of the size \(s\d+, 6\).* with these sizes fixed"):
        convert(exported, Options())


def test_other_errors_stay_what_they_are() -> None:
    size_errors.refuse(ValueError("of nobody"), GraphModule(torch.nn.Module(), torch.fx.Graph()))
    try:
        raise NotImplementedError("of ours")
    except NotImplementedError as error:
        size_errors.refuse(error, GraphModule(torch.nn.Module(), torch.fx.Graph()))


def test_numbers_and_tensors_of_which_only_a_run_knows() -> None:
    graph = torch.export.export(
        Calling(lambda x: x * x.shape[0]), (torch.ones(4, 6),), dynamic_shapes=({0: torch.export.Dim.AUTO},)
    ).graph
    values = [node.meta["val"] for node in graph.nodes if "val" in node.meta]
    assert len(values) == 3 and all(map(size_errors.may_change, values))
    assert not size_errors.may_change(torch.ones(2)) and not size_errors.may_change([3, torch.ones(2)])
