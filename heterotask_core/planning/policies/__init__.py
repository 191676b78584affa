"""Online policies as StarPU has them, simulated: for comparison with planning offline."""
