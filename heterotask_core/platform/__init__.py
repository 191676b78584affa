"""The machine: nodes, memories, devices, links; discovery and description files."""
