"""Health of a table, from its metadata: no data file is opened, nothing is written, and nothing is listed but the metadata
directory, by `lost_metadata` and for a report alone.

metadata, manifest lists -> entries of heads, folded once -> figures -> what each job would do -> a score and its reasons
"""
