"""`torch.compile(f)` compiles for the devices of its graph, whatever else the process compiles."""

from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch.nn.attention.flex_attention import create_block_mask

from torch_xla._engine.compiled.dynamo import default_backend
from torch_xla._engine.metrics.counters import value_of

# PyTorch imports modules of its own, and deprecates what they use.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is:DeprecationWarning")


@pytest.fixture(autouse=True)
def forget() -> None:
    torch.compiler.reset()
    counters.clear()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"backend": "inductor"},
        {"mode": "reduce-overhead"},
        {"mode": "max-autotune"},
        {"options": {"epilogue_fusion": True}},
        {"dynamic": True, "fullgraph": True},
        {"backend": "openxla", "mode": "reduce-overhead"},
        {"backend": "openxla", "options": {"max_autotune": True}},
    ],
    ids=lambda options: "-".join(map(str, options.values())) or "default",
)
def test_a_function_on_xla_is_compiled_by_openxla(options: dict[str, Any]) -> None:
    x = torch.arange(4.0)
    compiled = torch.compile(lambda a: (a * 2 + 1).cos().sum(), **options)
    assert torch.allclose(compiled(x.to("xla")).cpu(), (x * 2 + 1).cos().sum())
    assert not value_of("DynamoGraphByOperator")


def test_a_module_trains_and_infers() -> None:
    reference = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    x = torch.randn(3, 4)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    model.load_state_dict(reference.state_dict())
    compiled = torch.compile(model.to("xla"))
    reference(x).square().sum().backward()
    compiled(x.to("xla")).square().sum().backward()
    for ours, expected in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.allclose(ours.grad.cpu(), expected.grad, atol=1e-5)  # type: ignore[union-attr]
    with torch.inference_mode():
        assert torch.allclose(compiled(x.to("xla")).cpu(), reference(x), atol=1e-5)


def test_one_function_goes_to_each_device_by_its_inputs() -> None:
    taken: list[bool] = []

    def noting(module: torch.fx.GraphModule, examples: Any) -> Any:
        taken.append(default_backend.holds_xla(module, examples))
        return module

    compiled = torch.compile(lambda a: (a * 3).sin(), backend=noting)
    x = torch.arange(4.0)
    compiled(x)
    compiled(x.to("xla"))
    assert taken == [False, True]


@pytest.mark.slow  # Inductor calls a compiler of C++
def test_a_model_on_the_cpu_still_uses_inductor() -> None:
    compiled = torch.compile(lambda a: (a * 3).sin())
    x = torch.arange(4.0)
    assert torch.allclose(compiled(x.to("xla")).cpu(), (x * 3).sin())
    assert counters["inductor"]["fxgraph_cache_miss"] + counters["inductor"]["fxgraph_cache_hit"] == 0
    assert torch.allclose(compiled(x), (x * 3).sin())
    assert counters["inductor"]["fxgraph_cache_miss"] + counters["inductor"]["fxgraph_cache_hit"] == 1


def test_a_function_may_use_the_host_beside_xla() -> None:
    x, host = torch.arange(4.0), torch.ones(4)
    compiled = torch.compile(lambda a, b: (a * 2, b + 1, a.cpu() + b))
    first, second, third = compiled(x.to("xla"), host)
    assert first.device.type == "xla" and first.tolist() == (x * 2).tolist()
    assert second.device.type == third.device.type == "cpu"
    assert second.tolist() == [2.0] * 4 and third.tolist() == (x + 1).tolist()


def test_a_function_without_inputs_goes_where_it_makes_tensors() -> None:
    assert torch.compile(lambda: torch.ones(3, device="xla") + 1)().tolist() == [2.0] * 3
    assert torch.compile(lambda a: a.to("xla") + 1)(torch.ones(3)).tolist() == [2.0] * 3


def test_a_block_mask_is_compiled() -> None:
    compiled = torch.compile(create_block_mask)

    def causal(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return query >= key

    ours = compiled(causal, 1, 1, 256, 256, device="xla")
    expected = create_block_mask(causal, 1, 1, 256, 256, device="cpu")
    assert torch.equal(ours.to_dense().cpu(), expected.to_dense())


@pytest.mark.parametrize("backend", [{}, {"backend": "openxla"}], ids=["default", "openxla"])
@pytest.mark.parametrize(
    ("options", "message"),
    [({"mode": "fast"}, "Unrecognized mode=fast"), ({"options": {"speed": 1}}, "Unexpected optimization option speed")],
    ids=["mode", "option"],
)
def test_what_inductor_does_not_know_is_refused(backend: dict[str, Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        torch.compile(lambda x: x + 1, **backend, **options)(torch.ones(2, device="xla"))


def test_the_old_way_to_name_inductor_is_routed() -> None:
    compiled = torch._dynamo.optimize("inductor")(lambda a: a * 2)  # type: ignore[no-untyped-call]
    assert compiled(torch.ones(2, device="xla")).tolist() == [2.0, 2.0]


def test_ahead_of_time_inductor_says_what_to_do() -> None:
    wrapper = torch._TorchCompileAOTInductorWrapper(None, None, None)  # type: ignore[no-untyped-call]
    module = torch.fx.symbolic_trace(lambda a: a * 2)
    with pytest.raises(RuntimeError, match="torch_xla.stablehlo"):
        wrapper(module, [torch.ones(2, device="xla")])
