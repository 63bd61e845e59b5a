"""Why one file of a table is there, or is not: who added it, what reads it, and when, or why, it goes. Nothing is changed."""
