"""Manifest lists and manifests, each by itself, and the totals of snapshots over their manifests.

lists -> rows of manifests, each manifest once -> entries of each, against its rows -> sums -> totals in summaries
"""
