"""Up to where this process does work by itself, and from where Spark does: one table of limits for all jobs.

Spark takes seconds to begin, and a task some milliseconds. Below these limits the driver is done before that, and what it
holds meanwhile takes at most some hundred megabytes.
"""

import msgspec

from icekeep.spec.units import GIB, MIB


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the driver does by itself; what is more goes to Spark tasks. Counts, and sizes in bytes.

    Attributes:
        entries_count: entries of manifests whose rows are held.
        folded_entries_count: entries of which no row is kept, only what is worked out from them.
        commit_entries_count: entries that a commit filters, or asks something of.
        commit_manifests_count: the manifests that they are in. A store answers in some 50 ms, sixteen at a time: three seconds.
        list_rows_count: rows of manifest lists.
        ref_entries_count: entries that are counted for each reference that leads to them.
        reachable_entries_count: entries by which the garbage of an expiration is told from what is in use; eight bytes are
            held of each.
        garbage_files_count: files that are garbage, and are held.
        deleted_files_count: files that are deleted, or moved to the trash.
        plan_files_count: files that deletion plans name.
        listed_files_count: files of a listing.
        looked_up_files_count: files that are looked up one by one, in place of a listing.
        footers_count: data files whose footers are looked at.
        sort_sample_bytes: of data files whose sort keys are sampled.
        delete_group_files_count, delete_group_bytes: of position delete files that are rewritten together.
        checked_delete_bytes: of delete files that `check` reads.
        row_ids_count: rows whose ids `check` holds against each other, 8 bytes each.
        rewrite_bytes: of files that are rewritten, where there is no session yet. Two processors write so much anew in half a
            minute, which is how long Spark takes to begin and for what is slow in its first job; a sort takes three times that,
            and more in Spark on the same processors.
        submitted_rewrite_bytes: the same under `spark-submit`, or where a cluster's session runs: the driver may be small.
        session_rewrite_bytes: the same where a session of this machine was given: its workers run already, and rewrite more as
            fast as threads.
        waiting_files_count: files that are opened for a rewrite, under `spark-submit` to a cluster, where a cluster's session
            runs, or where a session was given. A store answers in some 30 ms, and threads wait for two or three answers to each
            file: 10 seconds for two of them.
    """

    entries_count: int = 200_000
    folded_entries_count: int = 2_000_000
    commit_entries_count: int = 20_000
    commit_manifests_count: int = 1_000
    list_rows_count: int = 4_000_000
    ref_entries_count: int = 500_000
    reachable_entries_count: int = 10_000_000
    garbage_files_count: int = 1_000_000
    deleted_files_count: int = 100_000
    plan_files_count: int = 200_000
    listed_files_count: int = 1_500_000
    looked_up_files_count: int = 500
    footers_count: int = 2_000
    sort_sample_bytes: int = 256 * MIB
    delete_group_files_count: int = 100
    delete_group_bytes: int = 8 * MIB
    checked_delete_bytes: int = 256 * MIB
    row_ids_count: int = 10_000_000
    rewrite_bytes: int = 2 * GIB
    submitted_rewrite_bytes: int = 128 * MIB
    session_rewrite_bytes: int = 32 * MIB
    waiting_files_count: int = 200


LIMITS = Limits()
"""What holds where nobody hands in other limits."""
