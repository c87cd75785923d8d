"""Host: between device values and the host: transfers, bytes without a dtype, DLPack, archives of tensors.

Doors: every module.
"""
