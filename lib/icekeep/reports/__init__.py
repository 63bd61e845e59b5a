"""Reports over many tables: which are looked at, what is said of them, and how that is written for machines and people."""
