"""Measurements of the whole server beside Lance's own; see README.md."""
