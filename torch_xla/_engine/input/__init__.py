"""Input: load batches on the host and upload them to the devices ahead of their use.

Doors: every module.
"""
