"""Record: what is behind a torch.Tensor on `xla`: its storage, the tape it is recorded on, the sync of a step.

In: calls from `dispatch/`. Out: buffers, by way of `compile/` and `execute/`.

Doors: barrier, cached_graphs, device, donors, eager_cache, export, generator, growth, known_numbers, launcher, lines,
live_counters, manual, marks, ordinals, ownership, pending, placeholders, placement, random, recorded_counts, schedule,
scopes, step, storage, sync, tiles, torch_generator, truths, unlocked, upload.
"""
