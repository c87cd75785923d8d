"""Models quantised by torchao, by its configurations and by its flow over exported programs, run on xla.

Each is quantised on the CPU, moved, and compared with itself on the CPU and with the float model.
"""

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torchao.quantization import (
    Float8WeightOnlyConfig,
    Int8DynamicActivationInt8WeightConfig,
    Int8DynamicActivationIntxWeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    PerGroup,
    quantize_,
)
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import (
    X86InductorQuantizer,
    get_default_x86_inductor_quantization_config,
)

import torch_xla
import torch_xla.debug.metrics as met

# By configuration: what makes it, and how far the results may be from the float model's, relative to their norm.
GROUPS = PerGroup(32)
CONFIGURATIONS: dict[str, tuple[Callable[[], Any], float]] = {
    "int8 weights": (Int8WeightOnlyConfig, 0.005),
    "int8 weights and activations": (Int8DynamicActivationInt8WeightConfig, 0.01),
    "int4 weights": (lambda: IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=GROUPS), 0.05),
    "int4 weights, int8 activations": (
        lambda: Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=GROUPS),
        0.05,
    ),
    "float8 weights": (Float8WeightOnlyConfig, 0.02),
}
# Sums of other orders; a rounding that falls the other way moves a result by a step of its quantisation.
SAME_MODEL = 1e-5
SAME_GRAPH = 2e-3


class Model(torch.nn.Module):
    """Layers around an attention, as a transformer's block has them."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = torch.nn.Linear(64, 192), torch.nn.Linear(64, 64)
        self.wide, self.narrow = torch.nn.Linear(64, 256), torch.nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.project(x).chunk(3, -1)
        x = x + self.out(torch.softmax(query @ key.mT / 8, -1) @ value)
        hidden: torch.Tensor = x + self.narrow(torch.nn.functional.gelu(self.wide(x)))
        return hidden


def by_pt2e(model: torch.nn.Module, x: torch.Tensor) -> Any:
    """Quantize the model as an exported graph, after its observers have seen one batch."""
    graph = torch.export.export(model, (x,)).module()
    quantizer = X86InductorQuantizer().set_global(get_default_x86_inductor_quantization_config())
    prepared = prepare_pt2e(graph, quantizer)
    prepared(x)
    return convert_pt2e(prepared)


def quantised(model: torch.nn.Module, x: torch.Tensor) -> Iterator[tuple[str, Any, float, float]]:
    """Each form of the model: its name, itself, and the bounds of its errors against itself and the float model."""
    for name, (make, bound) in CONFIGURATIONS.items():
        form = copy.deepcopy(model)
        quantize_(form, make())
        yield name, form, SAME_GRAPH if "activations" in name else SAME_MODEL, bound
    yield "int8, quantised as an exported graph", by_pt2e(model, x), SAME_GRAPH, 0.01


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def main() -> None:
    warnings.filterwarnings("ignore")  # torchao's and PyTorch's about each other
    torch.manual_seed(0)
    model, x = Model().eval(), torch.randn(4, 16, 64)
    with torch.no_grad():
        expected = model(x)
        for name, form, bound, float_bound in quantised(model, x):
            on_cpu = form(x)
            moved = form.to("xla")
            given = x.to("xla")
            torch_xla.sync()
            for _ in range(3):  # in the second call a number that has changed becomes an argument
                met.clear_all()
                found = moved(given)
                torch_xla.sync()
            programs = met.counter_value("UncachedCompile") or 0
            against_cpu, against_float = error(found.cpu(), on_cpu), error(found.cpu(), expected)
            fallbacks = met.executed_fallback_ops()
            print(f"{name}: {against_cpu:.0e} from the CPU, {against_float:.3f} from the float model")
            assert against_cpu <= bound and against_float <= float_bound and not fallbacks, fallbacks
            assert programs == 0, f"the third call compiled {programs} programs"
    print("fallbacks 0")


if __name__ == "__main__":
    main()
