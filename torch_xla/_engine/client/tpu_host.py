"""The TPU chips of this machine, found on its PCI bus; no client is started."""

import errno
import re
import urllib.request
from pathlib import Path

_PCI_DEVICES = Path("/sys/bus/pci/devices")
_GOOGLE = "0x1ae0"
# The generation of a chip by its PCI device number. Both kinds of the fifth (5e, 5p) are 5.
_GENERATIONS = {"0x0027": 3, "0x005e": 4, "0x0062": 5, "0x0063": 5, "0x006f": 6, "0x0076": 7}
# Up to the third generation, a chip is two devices.
_LAST_WITH_TWO_CORES = 3

_METADATA = "http://metadata.google.internal/computeMetadata/v1/instance/attributes/tpu-env"
_ENTRY = re.compile(r"^\s*([A-Z0-9_]+)\s*:\s*'?(.*?)'?\s*$", re.MULTILINE)


def _chips() -> list[str]:
    found = []
    for vendor in sorted(_PCI_DEVICES.glob("*/vendor")):
        if vendor.read_text().strip() == _GOOGLE:
            number = (vendor.parent / "device").read_text().strip()
            if number in _GENERATIONS:
                found.append(number)
    return found


def chip_count() -> int:
    """How many chips are attached to this machine."""
    return len(_chips())


def cores_per_chip() -> int:
    """How many devices one chip is."""
    return 2 if generation() <= _LAST_WITH_TWO_CORES else 1


def device_count() -> int:
    """How many TPU devices this machine has: 0 on one without."""
    chips = chip_count()
    return chips * cores_per_chip() if chips else 0


def generation() -> int:
    """4 of a v4, 5 of a v5e or v5p, and so on."""
    chips = _chips()
    if not chips:
        raise _no_tpu()
    return _GENERATIONS[chips[0]]


def environment() -> dict[str, str]:
    """What the cloud's metadata server says of this TPU machine, as in {"ACCELERATOR_TYPE": "v4-8", ...}."""
    # Elsewhere nobody answers, and a request would only cost time.
    if not chip_count():
        raise _no_tpu()
    request = urllib.request.Request(_METADATA, headers={"Metadata-Flavor": "Google"})
    with urllib.request.urlopen(request, timeout=5) as answer:
        return parse_environment(answer.read().decode())


def parse_environment(text: str) -> dict[str, str]:
    """The `KEY: 'value'` lines of the metadata server's answer."""
    return dict(_ENTRY.findall(text))


def _no_tpu() -> OSError:
    return OSError(errno.ENODEV, "this machine has no TPU on its PCI bus")
