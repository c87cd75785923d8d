"""The backend `openxla` as PyTorch finds it: by its names, and before Dynamo watches our own code."""

import warnings
from collections.abc import Callable

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


DRAWS: dict[str, Callable[[torch.Tensor, torch.Generator], torch.Tensor]] = {
    "rand": lambda x, generator: torch.rand(3, generator=generator, device=x.device) + x,
    "normal": lambda x, generator: torch.normal(x, 1.0, generator=generator),
    "bernoulli": lambda x, generator: torch.bernoulli(x * 0.5, generator=generator),
    "in place": lambda x, generator: (x * 2).uniform_(generator=generator) * x,
    "multinomial": lambda x, generator: torch.multinomial(x, 2, generator=generator),
    "poisson": lambda x, generator: torch.poisson(x * 3, generator=generator),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_with_a_generator_is_left_to_python(name: str) -> None:
    captured, given, expected = (torch.Generator("xla").manual_seed(3) for _ in range(3))
    x = torch.ones(3, device="xla")
    torch._dynamo.reset()
    closing = torch.compile(lambda x: DRAWS[name](x, captured), backend="openxla")
    taking = torch.compile(DRAWS[name], backend="openxla")
    for _ in range(3):
        drawn = DRAWS[name](x, expected)
        torch.testing.assert_close(closing(x), drawn)
        torch.testing.assert_close(taking(x, given), drawn)
