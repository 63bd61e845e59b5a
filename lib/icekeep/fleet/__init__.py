"""Maintenance of many tables: which jobs are due on which of them, in which order, and how they are run side by side.

What is decided is pure: `choosing` (due, or why not), `retrying` (a table that fails is tried less often), `ranking` (benefit
for cost), `budget` (what still fits). What is done: `looking` reads each table once, `job` does the work, `leases` keep two
runs from doing the same.
"""
