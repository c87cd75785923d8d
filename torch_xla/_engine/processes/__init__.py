"""Processes: which process this is, how the processes of a program find each other, and who of them is alive.

Collectives are in `distributed/`; nothing here touches a tensor.

Doors: coordination, heartbeats, identity, preemption, spmd_mode, store_rendezvous.
"""
