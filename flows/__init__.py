"""Prefect flows over the library; the only importer of prefect."""
