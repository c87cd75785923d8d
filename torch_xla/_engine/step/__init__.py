"""Step: from the recorded tape to results on the device: what runs, as which program, when, and who waits for it.

In: the tape of a device and who holds its values. Out: buffers, by way of `compile/`. Read `sync.py` top to bottom,
with `step.py` beside it, which names the records; then `schedule.py`, whose passes have a file each.

Doors: cached_graphs, constant_predicates, device_waits, donation, eager_cache, end_of_step, executor,
flight_recorder, in_flight, liveness, named_scopes, pending_graph, pending_op_counts, pending_text, run_failures,
schedule, step, step_closures, sync, unlocked_compile.
"""
