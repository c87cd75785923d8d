"""Rules of attention, transformer layers and recurrent layers."""
