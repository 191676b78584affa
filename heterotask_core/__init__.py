"""HeteroTask: plan task graphs offline for CPU+GPU clusters, execute them under MPI, calibrate the plan."""
