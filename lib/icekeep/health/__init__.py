"""Health of a table, from its metadata alone: no data file is opened, nothing is listed and nothing is written.

metadata, manifest lists -> entries of heads, folded once -> figures -> what each job would do -> a score and its reasons
"""
