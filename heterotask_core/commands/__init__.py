"""Commands with a module of their own: planning, what-if, instances."""
