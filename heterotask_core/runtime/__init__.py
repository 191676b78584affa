"""Execution of programs under MPI."""
