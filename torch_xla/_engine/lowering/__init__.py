"""Lowering: aten overload → function on JAX arrays. Importing the room fills the one table of rules.

Doors: barrier, call, collectives.exchange, control_flow.loops, decompositions, fx, fx_calls, growing,
indexing.sorting, kernels.attention, kernels.paged_attention, kernels.splash, library, manual,
marking, packing, promotion, registry, replicas, sequences.recurrent_layers, sharding, storage, value_checks, views.
"""

import importlib
import pkgutil

# Every file of the room registers its rules when it is imported: a new family needs no list to be entered in.
for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
    importlib.import_module(_module.name)
