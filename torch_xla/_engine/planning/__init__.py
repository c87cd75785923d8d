"""Planning: the memory, computing and communication that a step needs, without running it.

`sharding_search/` looks for the division of a program's inputs that costs least.

Doors: cost_model, device_specs, hlo_parser, planner, protobuf_reader, sharding_search.automatic.
"""

from .device_specs import DeviceSpec
from .mesh_in_use import default as default_mesh
from .mesh_in_use import note_made as note_mesh
from .mesh_in_use import set_default as set_default_mesh
from .script_plan import plan_of_script
from .sharding_search.automatic import last_found_layout
from .sharding_search.automatic import turn_on as turn_on_automatic_sharding
from .sharding_search.planned_search import found as found_layout
from .sharding_search.search import Found as FoundLayout
from .sharding_search.search import Trial as LayoutTrial
from .step_plan import StepPlan, plan_of
