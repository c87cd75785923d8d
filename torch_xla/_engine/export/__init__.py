"""Export: write programs as StableHLO, and read programs of others.

Doors: size_buckets.
"""

from .exported_calls import Model as ExportedModel
from .exported_calls import function_of as function_of_module
from .exported_program import Options as ExportOptions
from .exported_program import convert as convert_program
from .hlo_import import from_hlo
from .lowering_context import LoweringContext
from .saved_model import (
    InputLocation,
    StableHLOFunc,
    StableHLOFunctionMeta,
    StableHLOJSONSerializer,
    StableHLOModelBundle,
    VariableSignature,
    VariableType,
    stablehlo_obj_hook,
)
from .saved_model import in_version as bundle_in_version
from .saved_model import load as load_bundle
from .saved_model import save as save_bundle
from .stablehlo_versions import libraries_called, with_calls
from .stablehlo_versions import rewritten as rewritten_for_version
