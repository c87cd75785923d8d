"""Processes: which process this is, how the processes of a program find each other, and which are alive.

Collectives are in `distributed/`; nothing here touches a tensor.

Doors: coordination, heartbeats, identity, spmd_mode, store_rendezvous.
"""

from .coordination import connect, exchange
from .identity import (
    coordinator_address,
    host_index,
    local_process_count,
    local_replica_index,
    process_count,
    process_index,
    replica_count,
    replica_index,
)
from .identity import place as place_of_process
from .preemption import activate as activate_preemption
from .preemption import deactivate as deactivate_preemption
from .preemption import is_reached as is_preemption_reached
from .spmd_mode import is_automatic as is_spmd_automatic
from .spmd_mode import is_on as is_spmd_on
from .spmd_mode import turn_on as turn_on_spmd
