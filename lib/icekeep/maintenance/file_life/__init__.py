"""The life of one file: which snapshot added it, what reads it, and when, or why, it goes.

    `target.py`      what a path means: a location in whatever spelling, or the end of one
    `search.py`      manifest lists and manifests, each read once: which entries are of the file
    `lineage.py`     snapshots that read it, that added it, that took it out
    `deletes.py`     delete files that reach a data file
    `retention.py`   until when expiration keeps a snapshot that reads it
    `plans.py`       plans of runs that name it, and the trash
    `unnamed.py`     what it is if nothing leads to it
    `job.py`         all of that put together, as `icekeep why` shows it

Nothing is changed, and every rule is that of the job which goes by it.
"""
