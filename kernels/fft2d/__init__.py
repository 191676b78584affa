"""Two-dimensional Fourier transform on bands, with an all-to-all transpose."""
