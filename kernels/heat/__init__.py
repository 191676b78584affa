"""Heat diffusion on a grid of tiles."""
