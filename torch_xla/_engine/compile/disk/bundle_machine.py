"""The machine, JAX and compiler that the programs of a bundle need, beside those of this process."""

from collections.abc import Iterable
from pathlib import Path

from ...runtime import platform
from ...runtime.device_assignment import Target
from ..environment_digest import installed
from ..executable_key import described

# What must be equal for a program to be found, by its name in a header and for a user.
_NEEDED = {
    "platform": "platform",
    "device": "device",
    "torch": "torch",
    "jax": "jax",
    "jaxlib": "jaxlib",
    "runtime": "compiler",
    "rules": "torch_xla's rules",
}

# The environments of bundles that were imported before a device was in use.
_unchecked: list[tuple[Path, list[dict[str, str]]]] = []


def refused(bundle: Path, environments: Iterable[dict[str, str]], target: Target) -> str:
    """Return why no program of these environments can run on `target`; empty if one can, or if there is none."""
    here = described(target) | installed(target).texts() | {"devices": str(len(platform.all_devices()))}
    best: list[str] | None = None
    for environment in environments:
        differs = _differences(environment, here)
        if not differs:
            return ""
        if best is None or len(differs) < len(best):
            best = differs
    if best is None:
        return ""
    return (
        f"{bundle} holds no program for this process: {'; '.join(best)}. Compile the programs for this machine with "
        "what is installed here, `torch_xla.debug.plan(step, topology=...)` and `torch_xla.cache.export(path, "
        "topology=...)`. To fill the folder of another machine, import with `elsewhere=True` (`--elsewhere`)."
    )


def _differences(there: dict[str, str], here: dict[str, str]) -> list[str]:
    found = [
        f"{name} {there.get(key, '')!r}, and here {here.get(key, '')!r}"
        for key, name in _NEEDED.items()
        if there.get(key) != here.get(key)
    ]
    count = there.get("devices", "").partition(" ")[0]
    if count.isdigit() and int(count) > int(here["devices"]):
        found.append(f"{count} devices, and here {here['devices']}")
    return found


def check_later(bundle: Path, environments: list[dict[str, str]]) -> None:
    """Remember a bundle until a device is in use."""
    _unchecked.append((bundle, environments))


def found_elsewhere(target: Target) -> list[str]:
    """Return why the bundles that were imported so far cannot run on `target`, the first device in use."""
    bundles = _unchecked[:]
    _unchecked.clear()
    return [text for bundle, environments in bundles if (text := refused(bundle, environments, target))]
