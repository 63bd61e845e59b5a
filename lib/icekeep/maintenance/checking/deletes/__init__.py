"""What delete files and deletion vectors hold (411 to 416, 420, 421), and the row ids of version 3 (417), for `deep`.

Each file is read once, and held against all entries that name it (`claims`); what it deletes beyond the end of a data file is
found by keys of locations when all are read (`reaches`).
"""
