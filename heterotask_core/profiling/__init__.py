"""Timing of variants and links, and the cost model made from it."""
