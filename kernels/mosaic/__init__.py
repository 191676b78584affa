"""A mosaic of overlapping sky images, as Montage makes it."""
