"""Programs that leave the process as StableHLO and come in: exported models, bundles on disk, modules as text.

Doors: buckets, bundle, calls, computations, program, versions.
"""
