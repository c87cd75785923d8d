"""Step: from the recorded tape to results on the device: what runs, as which program, when, and what waits for it.

In: the tape of a device and who holds its values. Out: buffers, by way of `compile/`. Read `sync.py` top to bottom,
with `step.py` beside it, which names the records; then `schedule.py`, whose passes have a file each.

Doors: collective_consistency, constant_predicates, donation, eager_cache, end_of_step, executor, in_flight, liveness,
named_scopes, pending_graph, pending_op_counts, pending_text, run_failures, schedule, step, sync, unlocked_compile,
waits_among_processes.
"""

from .end_of_step import add_closure, end_step, start_recorded, wait_for_devices
from .end_of_step import mark as mark_step
from .graph_capture import Capture, CapturedGraph, is_capturing
from .graphs_by_hash import drop_recorded, need_materialisation
from .graphs_by_hash import inputs_of as inputs_of_graph
from .graphs_by_hash import remember as remember_graph
from .graphs_by_hash import run as run_graph
from .named_scopes import close_scope, name_operation, open_scope
from .pending_graph import is_pending, on_xla
from .pending_text import describe as describe_pending
from .pending_text import element_type as element_type_name
from .pending_text import hlo_bytes as pending_hlo_bytes
from .pending_text import hlo_text as pending_hlo_text
from .pending_text import ir_dot as pending_ir_dot
from .pending_text import ir_text as pending_ir_text
from .pending_text import show_lines as show_lines_in_text
from .pending_text import shows_lines as shows_lines_in_text
from .pending_text import stablehlo_bytecode as pending_stablehlo_bytecode
from .pending_text import stablehlo_text as pending_stablehlo_text
from .schedule import clear_schedules
from .step_closures import Background as BackgroundClosures
from .sync import sync_device
