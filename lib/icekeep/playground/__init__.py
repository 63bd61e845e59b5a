"""A catalog to play with: tables in the states in which maintenance meets them, made without another engine and without Spark.

`states.py` says which there are, `job.py` makes them; `maker.py` is what makers of tables have in common.
"""
