"""Tiled Cholesky factorisation of a kernel matrix."""
