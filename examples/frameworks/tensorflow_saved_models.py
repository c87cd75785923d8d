"""Layers and functions saved as SavedModels with a dynamic batch, loaded and run by TensorFlow.

Each is compared with PyTorch on the CPU, at two batches that the export has not seen. Those of error functions, of
inverse trigonometric functions and of `topk` are written as composites, which TensorFlow reads of old versions of
StableHLO alone: the oldest version that holds a program is what is written.
"""

import importlib.util
import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from torch_xla.tf_saved_model_integration import save_torch_module_as_tf_saved_model

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# PyTorch loads Triton where it is installed. TensorFlow must come after it, or their copies of LLVM end the process.
if importlib.util.find_spec("triton") is not None:
    import triton  # noqa: F401
import tensorflow as tf  # noqa: E402

WIDTH, BATCHES = 4, (1, 3)
TOLERANCE = 1e-5

FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "GELU": torch.nn.GELU(),
    "erf": torch.erf,
    "erfinv": torch.erfinv,
    "topk": lambda x: torch.topk(x, 2),
    "asin": torch.asin,
    "acosh": lambda x: torch.acosh(x + 1),
    "tan": torch.tan,
    "gather": lambda x: x.gather(1, x.argmax(-1, keepdim=True)),
    "attention": lambda x: functional.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None]),
    "a transformer's layer": torch.nn.TransformerEncoderLayer(WIDTH, 2, 8, activation="gelu").eval(),
}


class Model(torch.nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def apart(model: Model, folder: Path) -> float:
    """Return the largest difference between TensorFlow's and PyTorch's results."""
    dynamic = ({0: torch.export.Dim("batch")},)
    save_torch_module_as_tf_saved_model(model, (torch.rand(2, WIDTH),), folder, dynamic_shapes=dynamic)
    serve = tf.saved_model.load(str(folder)).signatures["serving_default"]
    most = 0.0
    for batch in BATCHES:
        x = torch.rand(batch, WIDTH) * 0.9
        given, result = serve(args_0=tf.constant(x.numpy())), model(x)
        for place, expected in enumerate(result if isinstance(result, tuple) else (result,)):
            found = torch.from_numpy(given[f"output_{place}"].numpy())
            most = max(most, float((found - expected).abs().max()))
    return most


def main() -> None:
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    for name, function in FUNCTIONS.items():
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            difference = apart(Model(function), Path(folder))
        print(f"{name}: {difference:.0e} from the CPU with batches of {' and '.join(map(str, BATCHES))}")
        assert difference <= TOLERANCE, name


if __name__ == "__main__":
    main()
