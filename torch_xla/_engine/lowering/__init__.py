"""Lowering: from an aten overload to a function on JAX arrays. Importing the room fills the one table of rules.

Each folder is a family of operators, but for two: `machinery/` holds the table, type promotion and what rules share,
and `fx_graphs/` lowers FX graphs by the same rules.

Doors: collectives.exchange, control_flow.loops, fused_kernels.blockwise_attention, fused_kernels.paged_attention,
fused_kernels.splash_kernel, fx_graphs.composite_marks, fx_graphs.decompositions, fx_graphs.interpreter,
fx_graphs.plans_of_calls, indexing.sorting, machinery.barrier, machinery.common_jaxpr, machinery.composite_names,
machinery.device_value_checks, machinery.jax_sharding, machinery.lower_call, machinery.manual_regions,
machinery.packed_arrays, machinery.padded_functions, machinery.capacity_ops, machinery.product_precision,
machinery.promotion, machinery.registry, machinery.replica_axis, machinery.xla_op_schemas, sequences.recurrent_layers,
views.apply_view_ops, views.storage_access, xla_ops.mark_sharding.
"""

import importlib
import pkgutil

# Every file of the room registers its rules when it is imported: a new family needs no list to be entered in.
for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
    importlib.import_module(_module.name)
