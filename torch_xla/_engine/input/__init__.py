"""Input: batches on their way from a loader on the host to the devices, ahead of their use.

Doors: every module.
"""
