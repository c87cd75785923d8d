"""Replacements that need code of their own; `patch_list.py` names every one."""
