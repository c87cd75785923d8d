"""Execute: a program and buffers become buffers. Starts the device and does not wait for it.

Doors: closures, executor, flights, room, waiting.
"""
