"""Readers of the standard formats, for tasks and probes alike."""
