"""The numbers that every exporter writes, each read once, under names from which each exporter derives its own."""

from dataclasses import dataclass

from ...metrics import counters, samples
from ...metrics.report import fallback_names
from ...processes import identity
from ...runtime import device_memory
from ...tensor import device as devices
from . import goodput


@dataclass(frozen=True)
class Reading:
    """One number, with labels. The unit is "s", "By" (bytes) or the thing counted, as in UCUM: "{step}"."""

    name: str  # words divided by dots
    help: str
    unit: str
    is_total: bool  # it only grows while the process lives
    labels: dict[str, str]
    value: float


def labels_of_process() -> dict[str, str]:
    """Return the labels that identify this process."""
    return {"rank": str(identity.process_index())}


def read() -> list[Reading]:
    """Return all numbers of this process."""
    now = goodput.read()
    found = [
        Reading("time", "Time by account; the sum is the time of the process.", "s", True, {"account": name}, seconds)
        for name, seconds in now.seconds.items()
    ]
    compiling = samples.data_of("CompileTime")
    counted = {
        "steps": ("Steps ended.", "{step}", now.steps),
        "programs": ("Programs started on the device.", "{program}", counters.value_of("ExecuteComputation") or 0),
        "compilations": ("Programs compiled.", "{compilation}", compiling.total_samples if compiling else 0),
        "fallbacks": ("Operators that ran on the CPU.", "{operator}", _fallbacks()),
    }
    found += [Reading(name, text, unit, True, {}, value) for name, (text, unit, value) in counted.items()]
    for direction, metric in (("to_device", "OutboundData"), ("from_device", "InboundData")):
        moved = samples.data_of(metric)
        text = "Bytes moved between host and device."
        found.append(Reading("transfer", text, "By", True, {"direction": direction}, moved.accumulator if moved else 0))
    for device in devices.existing_devices():
        usage = device_memory.usage(device.target.device)
        labels = {"device": str(device.index)}
        found.append(Reading("memory.used", "Memory of the device in use.", "By", False, labels, usage.used))
        found.append(Reading("memory.limit", "Memory of the device.", "By", False, labels, usage.limit))
    return found


def _fallbacks() -> int:
    return sum(counters.value_of(name) or 0 for name in fallback_names())
