"""Applications: one folder each with graph, variants and check."""
