"""Client: devices and buffers, PJRT as JAX shows it. Nothing here knows PyTorch's dispatcher or the graph.

Doors: attributes, buffers, choice, coordination, host_heap, launches, mappings, meeting, memory, peers, placeholder,
planned, platform, plugins, processes, target, tpu_host, virtual.
"""
