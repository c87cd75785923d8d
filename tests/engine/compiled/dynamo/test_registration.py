"""The backend `openxla` as PyTorch finds it: by its names, and before Dynamo watches our own code."""

import warnings

import pytest
import torch
from torch import nn


@pytest.mark.parametrize("name", ["openxla", "openxla_eval", "torchxla_trace_once", "aot_torchxla_trace_once"])
def test_every_name_of_the_backend(name: str) -> None:
    torch.compile(lambda x: x, backend="openxla")  # the first call prepares Dynamo
    assert name in torch._dynamo.list_backends()
    assert torch.compile(lambda x: x + 1, backend=name)(torch.ones(2, device="xla")).tolist() == [2.0, 2.0]


def test_an_option_that_inductor_does_not_know_is_refused() -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="Unexpected optimization option speed"):
        torch.compile(lambda x: x + 1, backend="openxla", options={"speed": 1})(torch.ones(2, device="xla"))


def test_nothing_of_the_engine_is_compiled_between_graphs() -> None:
    lstm = nn.LSTM(3, 4).to("xla")
    run = torch.compile(lambda x: lstm(x * 2)[0], backend="openxla")
    x = torch.randn(5, 2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = run(x.to("xla"))
    theirs = nn.LSTM(3, 4)
    theirs.load_state_dict({name: value.cpu() for name, value in lstm.state_dict().items()})
    torch.testing.assert_close(result.cpu(), theirs(x * 2)[0], rtol=1e-4, atol=1e-5)
