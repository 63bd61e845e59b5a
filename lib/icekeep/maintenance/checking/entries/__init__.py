"""What needs the entries of all manifests together, and the files that they name: classes 212 to 214, 235, and 301 to 306.

Files are told by keys of their locations. First all live entries are held against each other and against a listing, by keys
alone (`sketch`, `suspects`, `comparing`); what looks wrong there is then read with all that its entries say, and confirmed
(`looking`, `judging`). So a key that two files have by chance, or a listing that is behind, is never a fault.
"""
