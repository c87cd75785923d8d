"""Rules of products of matrices, factorisations and Fourier transforms."""
