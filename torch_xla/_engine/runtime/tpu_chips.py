"""Find the TPU chips of this machine on its PCI bus, and how processes share them, without a client."""

import errno
import importlib.util
import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .. import config
from ..processes.identity import Place

_PCI_DEVICES = Path("/sys/bus/pci/devices")
_GOOGLE = "0x1ae0"
# The generation of a chip by its PCI device number. Both kinds of the fifth (5e, 5p) are 5.
_GENERATIONS = {"0x0027": 3, "0x005e": 4, "0x0062": 5, "0x0063": 5, "0x006f": 6, "0x0076": 7}
# Up to the third generation, a chip is two devices.
_LAST_WITH_TWO_CORES = 3

# The grid (x, y, z) of chips with one process each, as in JAX's own multi-process tests.
_BOUNDS = {1: "1,1,1", 4: "2,2,1", 8: "4,2,1"}
# Where libtpu's processes listen for each other; the first of as many ports.
_PORT = 8476

# libtpu asks Google's metadata server what machine it is on. These answer for it where there is no TPU.
_NO_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}

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
    """Return the number of chips attached to this machine."""
    return len(_chips())


def cores_per_chip() -> int:
    """Return the number of devices per chip."""
    return 2 if generation() <= _LAST_WITH_TWO_CORES else 1


def device_count() -> int:
    """Return the number of TPU devices of this machine: 0 without a TPU."""
    chips = chip_count()
    return chips * cores_per_chip() if chips else 0


def is_usable() -> bool:
    """Return whether there are chips, and the library by which JAX uses them."""
    return chip_count() > 0 and importlib.util.find_spec("libtpu") is not None


@contextmanager
def searching_for_no_tpu() -> Iterator[None]:
    """Keep libtpu within a `with` block from searching for the machine's TPU, if there is none.

    It would ask the network, and write to standard error that nothing answers. JAX starts it with any other client.
    """
    if chip_count() or importlib.util.find_spec("libtpu") is None:
        yield
        return
    with config.defaults_set(_NO_TPU):
        yield


def process_count() -> int:
    """Return the number of processes of a program on this machine: one for each visible chip."""
    visible = config.visible_tpu_chips()
    return chip_count() if visible is None else len(visible)


def share_of(place: Place) -> dict[str, str]:
    """Return the variables by which libtpu gives the process at `place` one chip.

    Raises `RuntimeError` where the processes and the chips are not as many, and `NotImplementedError` for what one chip
    for each process cannot be: several machines, chips that are two devices, 2 chips or 3.
    """
    chips, count = config.visible_tpu_chips(), place.local_count
    if chips is None:
        chips = [str(index) for index in range(chip_count())]
    if not place.is_on_one_machine:
        raise NotImplementedError(
            "A process for each TPU chip is arranged on one machine alone. On several, start one process a machine "
            "(torchrun --nproc-per-node 1) and let it drive all chips: torch_xla.runtime.use_spmd(). Or set what "
            "libtpu reads yourself: TPU_PROCESS_BOUNDS and what belongs to it."
        )
    if cores_per_chip() > 1:
        raise NotImplementedError(
            f"A chip of a TPU v{generation()} is two devices, and a process of the program has one. Let one process "
            "drive all of them: torch_xla.runtime.use_spmd()."
        )
    if count != len(chips):
        raise RuntimeError(
            f"This machine shows {len(chips)} TPU chips (TPU_VISIBLE_CHIPS), each of which needs a process, and has "
            f"{count} processes of the program. Start {len(chips)}, or show {count}; one process can drive all of "
            "them by torch_xla.runtime.use_spmd()."
        )
    if count not in _BOUNDS:
        raise NotImplementedError(
            f"Cannot start a process for each of {count} TPU chips: expected 1, 4 or 8. Let one process drive all of "
            "them: torch_xla.runtime.use_spmd()."
        )
    return {
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_BOUNDS": _BOUNDS[count],
        "TPU_PROCESS_ADDRESSES": ",".join(f"localhost:{_PORT + index}" for index in range(count)),
        "TPU_PROCESS_PORT": str(_PORT + place.local_index),
        "TPU_VISIBLE_CHIPS": chips[place.local_index],
        "CLOUD_TPU_TASK_ID": str(place.index),
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }


def generation() -> int:
    """Return 4 for a v4, 5 for a v5e or v5p, and so on."""
    chips = _chips()
    if not chips:
        raise _no_tpu()
    return _GENERATIONS[chips[0]]


def environment() -> dict[str, str]:
    """Return the metadata server's description of this TPU machine, as in {"ACCELERATOR_TYPE": "v4-8", ...}."""
    # On other machines there is no metadata server, and a request would only take time.
    if not chip_count():
        raise _no_tpu()
    request = urllib.request.Request(_METADATA, headers={"Metadata-Flavor": "Google"})
    with urllib.request.urlopen(request, timeout=5) as answer:
        return parse_environment(answer.read().decode())


def parse_environment(text: str) -> dict[str, str]:
    """Return the `KEY: 'value'` lines of the metadata server's answer."""
    return dict(_ENTRY.findall(text))


def _no_tpu() -> OSError:
    return OSError(errno.ENODEV, "this machine has no TPU on its PCI bus")
