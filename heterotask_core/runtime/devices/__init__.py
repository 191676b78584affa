"""Device backends behind one contract."""
