"""Dispatch: from one call of PyTorch to one recorded operation.

`recording_kernel.py` is behind almost every operator. `checks/` refuses what the CPU refuses, `ops/` holds operators
that are more than one recorded call, `register/` makes `xla` a backend of PyTorch.

Doors: call_planning, checks.cpu_dtypes, checks.device_values, checks.host_values, cpu_fallback, op_schema,
ops.mark_sharding, recording_kernel, register, register.aten_kernels, register.nn_modules, register.torch_patches,
stricter_meta_kernels.
"""
