"""Measure what many processes of one program say to each other, without a device that has anything to compute.

    python -m benchmarks.many_processes [--counts 1,4,16,64] [--seconds 10] [--write docs/benchmarks.md]

Each process runs one program of eight additions, and no collective. "Start" is the time from the call of `xmp.spawn`
(fork) until the last process has met the others; "exchange" the median of five in which each brings a value; "program"
the time until the last has its first result, and how many compiled it: the others load it from the folder that they
share. "Messages" are those of a process to the service in a second in which it waits, "processors" the time of all
processes in such a second. "Goodput" is the largest difference between that time and the sum of its accounts in a
process; memory is the proportional share of each. Processes that are more than the cores wait for each other.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from statistics import median

import torch

import torch_xla
import torch_xla.debug.metrics as met
from benchmarks import machine, page
from torch_xla._engine.distributed import process_launch
from torch_xla._engine.processes import coordination, coordination_proxy

HEADING = "## Many processes that compute nothing"


class Asked:
    """Counts the messages of this process to the service."""

    def __init__(self) -> None:
        self.count = 0
        ask = coordination_proxy.Client._ask

        def counted(*args, **kwargs):  # type: ignore[no-untyped-def]
            self.count += 1
            return ask(*args, **kwargs)

        coordination_proxy.Client._ask = counted  # type: ignore[method-assign]


def share_of_memory() -> float:
    """Return the mebibytes of this process, those that it shares divided among all who do."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return int(next(each for each in lines if each.startswith("Pss:")).split()[1]) / 1024


def one(index: int, folder: str, began: float, seconds: float) -> None:
    """One of the processes."""
    asked = Asked()
    coordination.connect()
    found = {"start": time.time() - began}
    exchanges = []
    for _ in range(5):
        before = time.perf_counter()
        coordination.exchange("measured", b"x")
        exchanges.append(time.perf_counter() - before)
    before = time.perf_counter()
    x = torch.full((8,), float(index)).to("xla") + 1
    assert x.tolist() == [index + 1] * 8
    found |= {"exchange": median(exchanges), "program": time.perf_counter() - before}
    found["compiled"] = met.counter_value("StableHloCompile") or 0
    coordination.exchange("measured", b"x")
    before, messages, processors = time.perf_counter(), asked.count, time.process_time()
    spent = torch_xla.debug.goodput()
    time.sleep(seconds)
    spent = torch_xla.debug.goodput() - spent
    waited = time.perf_counter() - before
    found |= {"messages": (asked.count - messages) / waited, "processors": (time.process_time() - processors) / waited}
    found |= {"goodput": abs(waited - sum(spent.seconds.values())), "memory": share_of_memory()}
    coordination.exchange("measured", b"x")  # all share the memory until here
    Path(folder, str(index)).write_text(json.dumps(found))


def measured(count: int, seconds: float) -> list[str]:
    """Return a row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XLA_PERSISTENT_CACHE_PATH"] = f"{folder}/programs"
        process_launch.start(one, (folder, time.time(), seconds), count, True, False, "fork")
        found = [json.loads(Path(folder, str(index)).read_text()) for index in range(count)]
    most = {name: max(each[name] for each in found) for name in found[0]}
    total = {name: sum(each[name] for each in found) for name in found[0]}
    return [
        str(count), f"{most['start']:.1f} s", f"{median(each['exchange'] for each in found) * 1e3:.0f} ms",
        f"{most['program']:.1f} s, {total['compiled']:.0f}", f"{median(each['messages'] for each in found):.1f}",
        f"{total['processors']:.2f} s", f"{most['goodput']:.1e} s", f"{total['memory'] / count:.0f} MiB",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", default="1,4,16,64")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    machine.confine()
    with machine.watched() as disturbance:
        rows = [measured(int(count), given.seconds) for count in given.counts.split(",")]
    header = ["processes", "start", "exchange", "program", "messages", "processors", "goodput", "memory"]
    page.publish(given.write, HEADING, "many_processes", __doc__, page.table(header, rows), disturbance=disturbance)


if __name__ == "__main__":
    main()
