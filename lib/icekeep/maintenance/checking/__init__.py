"""The job `check`: whether a table is what the spec says, from its metadata file down to the rows."""
