"""The precision of float32 matrix products, with which programs are compiled."""

NAMES = ("default", "high", "highest")

# As PyTorch's own `torch.get_float32_matmul_precision()`: what speed costs in digits is the user's to decide.
_chosen = "highest"


def choose(name: str) -> None:
    """Set the precision of the programs compiled from now on."""
    global _chosen
    if name not in NAMES:
        raise ValueError(
            f"the precision of matrix products is {name!r}; it must be one of {', '.join(map(repr, NAMES))}"
        )
    _chosen = name


def chosen() -> str:
    """The precision in force, as JAX calls it too."""
    return _chosen
