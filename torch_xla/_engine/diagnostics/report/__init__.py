"""One report of a program's past, as text and as a page with pictures."""
