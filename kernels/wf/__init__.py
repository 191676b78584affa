"""Replay of recorded workflows in WfFormat."""
