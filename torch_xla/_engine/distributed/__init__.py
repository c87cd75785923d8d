"""Distributed: several processes: who takes part, and what passes between them.

Doors: backend, channels, collectives, differentiable, division, launch, meshes, process_group, replicas, shards, units.
"""
