"""What can only be given up: entries of files that are lost or broken, and what stands twice."""
