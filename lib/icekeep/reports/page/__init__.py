"""A report as one page that needs nothing else: HTML with its style, its few lines of script and its charts in it."""
