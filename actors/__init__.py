"""Who owns a table and how a change becomes a version.

Plain classes; Ray appears only in the files whose names say so (see ARCHITECTURE.md).
"""
