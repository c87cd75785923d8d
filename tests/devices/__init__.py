"""Programs compiled for devices that are not here, by the real compilers: `python -m tests.devices` (`__main__.py`)."""
