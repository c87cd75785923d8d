"""Compile: an ordered graph becomes an executable, found again by its key. Knows JAX, neither storages nor tensors.

`disk/` keeps executables for other processes, `stages/` cuts deep programs into equal parts that are compiled once.

Doors: baked_numbers, disk.bundle, disk.cache_folder, disk.disk_cache, executable_key, graph_sizes,
inlining, output_shardings, program, program_cache, program_text, settings_in_force, source_metadata, symbolic_length,
xla_compile.
"""
