"""The life of one file: which snapshot added it, what reads it, and when, or why, it goes.

    `target.py`      what a path means: a location in whatever spelling, or the end of one
    `by_name.py`     files that metadata leads to by name
    `search.py`      manifest lists and manifests, each read once: which entries are of the file
    `lineage.py`     snapshots that read it, that added it, that took it out
    `content.py`     what a version says of it: partition, columns, a filter, and by `deletes.py` the deletes that reach it
    `retention.py`   until when expiration keeps a snapshot that reads it
    `plans.py`       plans of runs that name it, and the trash
    `unnamed.py`     what it is if nothing leads to it
    `job.py`         all of that put together, as `icekeep why` shows it; `words.py` has the sentences

Nothing is changed, and every rule is that of the job which goes by it.
"""
