"""The precision of float32 matrix products, with which programs are compiled."""

NAMES = ("default", "high", "highest")

# The precision in force, as JAX calls it too. It begins as PyTorch's own (`torch.get_float32_matmul_precision()`):
# what speed costs in digits is the user's to decide.
in_force = "highest"


def choose(name: str) -> None:
    """Set the precision of the programs compiled from now on."""
    global in_force
    if name not in NAMES:
        raise ValueError(
            f"the precision of matrix products is {name!r}; it must be one of {', '.join(map(repr, NAMES))}"
        )
    in_force = name
