"""Transfer: move values between devices and the host: copies, DLPack, bytes without a dtype, archives.

Doors: every module.
"""
