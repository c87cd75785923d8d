"""Planning: what a step would need of memory, computing and communication, without running it.

`sharding_search/` looks for the division of a program's inputs that costs least.

Doors: cost_model, device_specs, hlo_parser, mesh_in_use, planner, protobuf_reader,
script_plan, sharding_search.automatic, sharding_search.planned_search, sharding_search.search, step_plan.
"""
