"""A table, or what was added to it since, under another prefix: its metadata rewritten, its files copied. The source stays."""
