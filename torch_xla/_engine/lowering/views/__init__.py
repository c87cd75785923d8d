"""Rules of the two operations that read and write a storage through a view."""
