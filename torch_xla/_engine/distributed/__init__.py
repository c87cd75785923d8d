"""Distributed: several processes: who takes part, and what passes between them."""
