"""XLA compiler options for the programs compiled while they are set: the user's override ours."""

from collections.abc import Callable, Mapping

Option = bool | int | float | str

# XLA:CPU keeps some products in bfloat16 that it has no kernel for. With this it widens the operands of all products.
WITHOUT_BFLOAT16_KERNELS: dict[str, Option] = {"xla_cpu_experimental_ynn_fusion_type": ""}

_chosen: dict[str, Option] = {}
# The options in force, as part of what programs are found by; empty if there are none.
text = ""


def choose(options: Mapping[str, Option] | None) -> Callable[[], None]:
    """Set the options of the programs compiled from now on; return a function that restores the previous ones."""
    before = dict(_chosen)
    for name, value in (options or {}).items():
        if not isinstance(name, str) or not isinstance(value, bool | int | float | str):
            raise TypeError(
                f"custom compile options are names of XLA's flags, such as 'xla_cpu_enable_fast_math', with a bool, "
                f"int, float or str each; got {name!r}: {value!r}"
            )
    _set(dict(options or {}))
    return lambda: _set(before)


def _set(options: dict[str, Option]) -> None:
    global _chosen, text
    _chosen = {name.removeprefix("--"): value for name, value in options.items()}
    text = ", ".join(f"{name}={value!r}" for name, value in sorted(_chosen.items()))


def chosen() -> Mapping[str, Option]:
    """Return the options in force."""
    return _chosen
