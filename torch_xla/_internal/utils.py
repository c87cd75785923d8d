"""Parse the names of physical devices."""

import re


def parse_xla_device(device: str) -> tuple[str, int]:
    """Return platform and number of a name from `torch_xla.real_devices()`. Raises `ValueError` for another text.

    >>> from torch_xla._internal.utils import parse_xla_device
    >>> parse_xla_device("CPU:1")
    ('CPU', 1)
    """
    found = re.fullmatch(r"([A-Z]+):(\d+)", device)
    if found is None:
        raise ValueError(f"parse_xla_device({device!r}): expected a name such as 'CPU:0'")
    return found[1], int(found[2])
