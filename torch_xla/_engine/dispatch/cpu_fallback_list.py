"""Operators that run on the CPU by decision, and why. Any other fallback is a missing rule."""

READS_MEMORY = "PyTorch has one kernel for all devices, and it reads the memory of its tensors"

# By the name a fallback is counted as; the reason is part of its warning.
ON_THE_CPU: dict[str, str] = {
    "aten::linalg_eig": "XLA finds the eigenvalues of matrices that are not symmetric on a CPU alone",
    "aten::_linalg_eigvals": "XLA finds the eigenvalues of matrices that are not symmetric on a CPU alone",
    "aten::linalg_ldl_factor_ex": "XLA has no factorization of symmetric matrices that are not positive",
    "aten::linalg_ldl_solve": "XLA has no factorization of symmetric matrices that are not positive",
    "aten::_histogramdd_bin_edges": "a histogram of several dimensions has a list of edges as its result, on the host",
    "aten::_histogramdd_from_bin_cts": "a histogram of several dimensions is made once, for a person to look at",
    "aten::_histogramdd_from_bin_tensors": "a histogram of several dimensions is made once, for a person to look at",
    "aten::_grid_sampler_2d_cpu_fallback": READS_MEMORY,
    "aten::_grid_sampler_2d_cpu_fallback_backward": READS_MEMORY,
    "aten::_sobol_engine_draw": READS_MEMORY,
    "aten::_sobol_engine_ff_": READS_MEMORY,
    "aten::_sobol_engine_initialize_state_": READS_MEMORY,
    "aten::_sobol_engine_scramble_": READS_MEMORY,
}
