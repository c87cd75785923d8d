"""Executables on disk: their format, who may have written them, and when processes agree to use one."""
