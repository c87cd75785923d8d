"""Export: programs that leave the process as StableHLO, and programs that come in.

Doors: exported_calls, exported_program, hlo_import, lowering_context, saved_model, size_buckets, stablehlo_versions.
"""
