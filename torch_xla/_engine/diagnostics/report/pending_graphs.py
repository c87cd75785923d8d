"""Find tensors whose unexecuted computation has grown long."""

from ...ir.graph import decode, needed
from ...ir.graph_text import shape
from ...metrics import user_lines
from ...step.liveness import held
from ...tensor.device import LOCK, Device


def tensors_report(device: Device, threshold: int) -> str:
    """Return each tensor of `device` that needs `threshold` recorded operations or more, the longest first, with its
    line.
    """
    with LOCK:
        tape = device.tape
        live = held(tape.values)
        _, operations, producer = decode(tape.code)
        known = tape.all_lines(tape.code)
        rows = []
        for slot, made_by in enumerate(producer):
            if made_by < 0 or not live[slot]:
                continue
            count = len(needed(operations, producer, [slot]))
            if count >= threshold:
                line = known.get(operations[made_by].position)
                place = f" made at {user_lines.text(line)}" if line else ""
                rows.append((-count, f"  {shape(tape.values[slot].spec)} needs {count} operations{place}\n"))
    title = f"Tensors of {device.torch_device} that need {threshold} recorded operations or more: {len(rows)}\n"
    return title + "".join(row for _, row in sorted(rows))
