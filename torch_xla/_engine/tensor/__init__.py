"""Tensor: what is behind a `torch.Tensor` on `xla`: its storage, its device, random state, and marks on them.

In: host tensors and calls from `dispatch/`. Out: values on the tape of a device.

Doors: device, device_names, host_known_values, live_counters, op_user_lines, optimization_barrier, padded_rows,
placeholder_tensors, random_state, seeds, sharding_annotations, storage, torch_generator, upload, variable_names.
"""
