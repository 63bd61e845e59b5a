"""What goes to the terminal: results, progress, and log lines."""
