"""Distributed: start several processes, and record what passes between them.

How processes find each other is in `processes/`.

Doors: channels, collective_arguments, collectives, differentiable_collectives, fsdp.fsdp_unit, fsdp.module_sharding,
fsdp.parameter_shards, init_process_group, process_group, process_launch, torch_device_mesh.
"""
