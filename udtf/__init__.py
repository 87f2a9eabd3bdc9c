"""How the rows of one materialized view are computed, and what its authors import.

Compute, no ownership: nothing here commits, schedules or answers a request.
"""
