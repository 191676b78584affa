"""Canny edge detection: tiled, with halos, equal to the untiled result."""
