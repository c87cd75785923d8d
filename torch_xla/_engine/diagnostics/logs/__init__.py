"""What settings make the engine write as it goes: PT_XLA_DEBUG, metrics files, graphs, a line for each step."""
