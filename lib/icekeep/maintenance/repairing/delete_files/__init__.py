"""Delete files and vectors that are written anew."""
