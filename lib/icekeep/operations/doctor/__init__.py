"""The command `doctor`: whether this machine, Spark's executors, catalogs and their stores are fit for the jobs.

driver (Python, Java, packages) -> catalogs (reached, store, commits) -> executors (the same versions, clocks, memory) -> findings
"""
