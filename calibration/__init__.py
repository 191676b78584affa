"""Overhead estimation, Bayesian search, acceptance and drift."""
