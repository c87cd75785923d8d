"""Step: from the recorded tape to results on the device: what runs, as which program, when, and who waits for it.

`sync.py` reads top to bottom. In: the tape of a device and who holds its values. Out: buffers, by way of `compile/`.

Doors: cached_graphs, constant_predicates, device_waits, eager_cache, end_of_step, executor, in_flight, launcher,
memory_admission, named_scopes, ownership, pending_graph, pending_op_counts, pending_text, schedule, step_closures,
sync, unlocked_compile, user_donation.
"""
