"""Client: devices and buffers, PJRT as JAX shows it. Nothing here knows PyTorch's dispatcher or the graph."""
