"""Compat: private names of PyTorch and JAX that the engine uses, and attributes of theirs that it changes.

`names/` borrows private names, `patches/` keeps what replaces behaviour, `abi/` writes to structures of C++. The list
of every patch, with its reason, is `patch_list.py`; that of changes which replace no attribute is
`replaced_internals.py`. `import_hooks.py` changes modules of other libraries when they are imported.

Doors: abi, import_hooks, names.jax, names.jax_callbacks, names.jax_clusters, names.jax_coordination,
names.jax_flash_attention, names.jax_source_lines, names.jax_starters, names.pure_namespaces, names.torch,
names.torch_caches, names.torch_checkpoint, names.torch_dispatch_keys, names.torch_distributed, names.torch_dynamo,
names.torch_dynamo_guards, names.torch_refs, names.torch_saved_graphs, names.torchscript, names.xprof, patch_list,
patches.autograd_observers, patches.garbage_callback, patches.mlir_contexts, removed_names.
"""
