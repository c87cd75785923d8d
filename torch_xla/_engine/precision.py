"""The precision of float32 matrix products and convolutions, with which programs are compiled."""

from .compat.names.torch import product_precision

NAMES = ("default", "high", "highest")

# The words of `torch.set_float32_matmul_precision` as XLA's: "high" is TensorFloat-32 or three passes in bfloat16,
# "medium" one pass.
_OF_TORCH = {"none": "", "ieee": "highest", "tf32": "high", "bf16": "default"}

# Without a choice, the CPU and GPUs compute float32 as PyTorch does there. A TPU's matrix unit multiplies bfloat16:
# float32 takes six passes and, for large programs, minutes to compile, so PyTorch/XLA and JAX leave it at one pass.
_OF_PLATFORM = {"tpu": "default"}

chosen = ""  # by `choose`


def choose(name: str) -> None:
    """Set the precision of the programs compiled from now on; it counts more than PyTorch's setting."""
    global chosen
    if name not in NAMES:
        raise ValueError(
            f"the precision of matrix products is {name!r}; it must be one of {', '.join(map(repr, NAMES))}"
        )
    chosen = name


def forget() -> None:
    """Return to PyTorch's setting and the platform's own."""
    global chosen
    chosen = ""


# What `torch.set_float32_matmul_precision` sets, as an argument of PyTorch's function that reads it.
OF_TORCH = ("mkldnn", "matmul")


def asked_for() -> str:
    """Return the precision that the user set, here or in PyTorch; "" if neither is set."""
    return chosen or _OF_TORCH.get(product_precision(*OF_TORCH), "")


def on_platform(name: str | None) -> str:
    """Return the precision in force on a platform, by JAX's name for it; `None` is any that is not a TPU."""
    return asked_for() or _OF_PLATFORM.get(name or "", "highest")
