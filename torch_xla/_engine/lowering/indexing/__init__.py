"""Rules of operators that take indices or order elements: gather, scatter, embedding, search, sort."""
