"""Rules of the collectives: what processes exchange inside a program."""
