"""Maintenance of many tables: which jobs are due on which of them, in which order, and how they are run side by side.

`choosing` decides, and is pure: which jobs are due, how often one that fails is tried, benefit for cost, what still fits in the
budget. `overview` reads each table once, and keeps two runs from doing the same; `job` does the work.
"""
