"""IR: the recorded program as plain values: specs, plans, the tape, graphs, shardings, views. Nothing here runs
anything.

In: plans and slots from `dispatch/`. Out: graphs for `compile/`. An operator is an opaque name.

Doors: call_plan, graph, graph_text, input_output_alias, op_sharding, partition_spec, sharding, side_effects, tape,
value_spec, verify_graph, view, view.dynamic_start, view.geometry.
"""

from .op_sharding import OpSharding, ShardingType, XlaShardingSpec, tiling
from .partition_spec import Dims, dims_of, literal
from .sharding import Sharding
