"""Ways to start an MPI job."""
