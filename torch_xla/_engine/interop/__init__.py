"""Interop: pass arrays and functions between PyTorch and JAX; XLA's own builder.

Doors: jax_arrays, jax_functions, pure_functions, torch_modules.
"""

from .custom_calls import configuration as mosaic_configuration
from .custom_calls import custom_call
from .custom_calls import mosaic as mosaic_call
from .jax_arrays import from_jax, to_jax
from .jax_functions import call as call_jax
from .pallas import Interpreted as InterpretedKernel
from .xla_builder import Builder as XlaBuilder
from .xla_builder import Computation as BuilderComputation
from .xla_builder import Described as BuilderDescribed
from .xla_builder import Node as BuilderNode
from .xla_builder import array as builder_array
from .xla_builder import array_of as builder_array_of
from .xla_builder import hlo_text as hlo_text_of_builder
from .xla_builder import jax_dtype as builder_dtype
from .xla_builder import name_of as dtype_name
from .xla_builder import operation as builder_operation
from .xla_builder import parameter as builder_parameter
from .xla_builder import text_of as text_of_shape
from .xla_builder_ops import inferred as inferred_sizes
