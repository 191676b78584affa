"""From schedule to program: lowering, buffers, verification."""
