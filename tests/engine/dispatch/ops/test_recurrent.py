"""LSTM, GRU and simple recurrent networks: values, gradients and strides of the CPU, in a few operations."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torch_xla
from tests.support.twins import check_refused, check_same
from tests.support.twins import outcome as outcome_of
from torch_xla._engine.metrics import counters

FEATURES, HIDDEN, SAMPLES, TIMES = 3, 4, 3, 5

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: nn.LSTM(FEATURES, HIDDEN),
    "lstm projected, bidirectional": lambda: nn.LSTM(FEATURES, HIDDEN, 2, proj_size=2, bidirectional=True),
    "lstm without biases": lambda: nn.LSTM(FEATURES, HIDDEN, bias=False),
    "gru": lambda: nn.GRU(FEATURES, HIDDEN, 2, batch_first=True),
    "gru without biases, bidirectional": lambda: nn.GRU(FEATURES, HIDDEN, bias=False, bidirectional=True),
    "tanh": lambda: nn.RNN(FEATURES, HIDDEN, 2),
    "relu, bidirectional": lambda: nn.RNN(FEATURES, HIDDEN, 2, nonlinearity="relu", bidirectional=True),
}


def states(network: Any, dtype: torch.dtype, d: str) -> list[Tensor]:
    count = network.num_layers * (2 if network.bidirectional else 1)
    sizes = [network.proj_size or HIDDEN] + [HIDDEN] * isinstance(network, nn.LSTM)
    values = (torch.linspace(-1, 1, count * SAMPLES * size, dtype=dtype) for size in sizes)
    return [v.reshape(count, SAMPLES, -1).to(d).requires_grad_() for v in values]


def outcome(make: Callable[[], nn.Module], d: str, packed: bool = False, dtype: torch.dtype = torch.float32) -> Any:
    """Output, last states, and gradients of the input, the states and the weights."""
    torch.manual_seed(1)
    network: Any = make().to(dtype)
    x = torch.randn(TIMES, SAMPLES, FEATURES, dtype=dtype, device="cpu")
    x = x.transpose(0, 1).contiguous() if network.batch_first else x
    x, network, start = x.to(d).requires_grad_(), network.to(d), states(network, dtype, d)
    given: Any = x
    if packed:
        lengths = torch.tensor([2, TIMES, 1], device="cpu")
        given = nn.utils.rnn.pack_padded_sequence(x, lengths, network.batch_first, enforce_sorted=False)
    output, last = network(given, tuple(start) if len(start) == 2 else start[0])
    last = last if isinstance(last, tuple) else (last,)
    data = output.data if packed else output
    factors = torch.linspace(-1, 2, data.numel(), dtype=dtype).reshape(data.shape).to(d)
    loss = (data * factors).sum() + sum(state.square().sum() for state in last)
    return [data, *last, *torch.autograd.grad(loss, [x, *start, *network.parameters()])]


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("packed", [False, True], ids=["", "packed"])
@pytest.mark.parametrize("make", list(NETWORKS.values()), ids=list(NETWORKS))
def test_values_and_gradients_are_those_of_the_cpu(make: Callable[[], nn.Module], packed: bool) -> None:
    check_same(lambda d: outcome(make, d, packed))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_other_dtypes(name: str, dtype: torch.dtype) -> None:
    tolerance = {} if dtype is torch.float64 else {"rtol": 5e-2, "atol": 5e-2}
    check_same(lambda d: outcome(NETWORKS[name], d, dtype=dtype), **tolerance)


@pytest.mark.parametrize("name", ["lstm", "gru", "tanh"])
def test_second_derivatives(name: str) -> None:
    def program(d: str) -> Any:
        torch.manual_seed(1)
        network = NETWORKS[name]().to(d)
        x = torch.randn(2, 2, FEATURES, device="cpu").to(d).requires_grad_()
        # The first state is computed from the input: its gradient must not be counted twice.
        state = x.mean((0, 1), keepdim=True).sum(2, keepdim=True).expand(len(list(network.parameters())) // 4, 2, 4)
        output, _ = network(x, (state, state) if name == "lstm" else state)
        grads = torch.autograd.grad(output.square().sum(), [x, *network.parameters()], create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in grads), [x, *network.parameters()])

    check_same(program)


@pytest.mark.parametrize("name", ["lstm", "gru", "tanh"])
def test_many_gradients_at_once(name: str) -> None:
    def program(d: str) -> Any:
        torch.manual_seed(1)
        network = NETWORKS[name]().to(d)
        x = torch.randn(3, 2, FEATURES, device="cpu").to(d).requires_grad_()
        output, _ = network(x)
        gradients = torch.randn(4, *output.shape, device="cpu").to(d)
        found = torch.autograd.grad(output, [x, *network.parameters()], gradients, is_grads_batched=True)
        assert not any(each.requires_grad for each in found)
        return found

    check_same(program, strides=False)


def test_dropout_between_layers_zeroes_and_scales() -> None:
    network = nn.RNN(1, 200, 2, nonlinearity="relu", bias=False, dropout=0.4).to("xla")
    with torch.no_grad():
        for weight in network.parameters():
            weight.zero_()
        network.weight_ih_l0.fill_(1)
        network.weight_ih_l1.copy_(torch.eye(200))
        x = torch.ones(3, 4, 1, device="xla")
        dropped = network(x)[0].cpu()
        whole = network.eval()(x)[0].cpu()
    assert torch.equal(whole, torch.ones_like(whole))
    torch.testing.assert_close(dropped.unique(), torch.tensor([0, 1 / 0.6]))
    assert abs((dropped == 0).float().mean().item() - 0.4) < 0.05


def test_a_layer_is_one_operation_however_long_the_sequence() -> None:
    network = nn.LSTM(FEATURES, HIDDEN, 2).to("xla")
    for times in (3, 30):
        torch_xla.sync()
        network(torch.ones(times, 2, FEATURES, device="xla"))[0].sum().backward()
        text = torch_xla._XLAC._get_xla_tensors_text([p.grad for p in network.parameters()])
        assert text.count("xla::recurrent_layer(") == text.count("xla::recurrent_layer_backward(") == 2
        assert text.count("\n") < 60


def test_other_lengths_do_not_compile_again() -> None:
    network = nn.GRU(FEATURES, HIDDEN).to("xla")
    for index, lengths in enumerate(([4, 3, 1], [4, 2, 2])):
        packed = nn.utils.rnn.pack_sequence([torch.ones(n, FEATURES, device="cpu") for n in lengths])
        result = network(nn.utils.rnn.PackedSequence(packed.data.to("xla"), packed.batch_sizes))[0].data.sum()
        if index == 1:
            counters.clear()
        result.item()
    assert counters.value_of("UncachedCompile") is None


def test_under_autocast_the_network_runs_in_the_lower_dtype() -> None:
    network = nn.LSTM(FEATURES, HIDDEN).to("xla")
    with torch.autocast("xla", dtype=torch.bfloat16):
        output, (hidden, cell) = network(torch.ones(2, 2, FEATURES, device="xla"))
    assert output.dtype is hidden.dtype is cell.dtype is torch.bfloat16
    output.sum().backward()
    assert network.weight_hh_l0.grad is not None and network.weight_hh_l0.grad.dtype is torch.float32


def test_anomaly_mode_checkpoints_and_functional_gradients() -> None:
    def program(d: str) -> Any:
        torch.manual_seed(1)
        network = nn.GRU(FEATURES, HIDDEN).to(d)
        x = torch.randn(2, 2, FEATURES, device="cpu").to(d).requires_grad_()

        def loss(x: Tensor) -> Tensor:
            return network(x)[0].square().sum()

        with torch.autograd.set_detect_anomaly(True, check_nan=False):
            (anomalous,) = torch.autograd.grad(loss(x), x)
        (again,) = torch.autograd.grad(torch.utils.checkpoint.checkpoint(loss, x, use_reentrant=False), x)
        return anomalous, again, torch.func.grad(loss)(x.detach())

    check_same(program)


def test_what_does_not_fit_is_refused_as_on_the_cpu() -> None:
    def program(d: str, samples: int, size: int, times: int = 2) -> Tensor:
        network = nn.GRU(FEATURES, HIDDEN, 2).to(d)
        state, x = torch.zeros(2, samples, size, device=d), torch.zeros(times, 2, FEATURES, device=d)
        return torch.gru(x, state, list(network.parameters()), True, 2, 0.0, False, False, False)[0]

    assert type(outcome_of(lambda d: program(d, 3, HIDDEN), "xla")) is RuntimeError
    check_refused(lambda d: program(d, 2, HIDDEN + 1))
    check_refused(lambda d: program(d, 2, HIDDEN, times=0))
