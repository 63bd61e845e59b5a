"""The command `history`: what each commit did to files, bytes, deletes and metadata."""
