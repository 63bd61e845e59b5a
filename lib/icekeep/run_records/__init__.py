"""What became of each run: written down when it begins and when it ends, and read by `runs`, `maintain` and the report."""
