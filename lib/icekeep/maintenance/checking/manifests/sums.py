"""What the entries of a manifest come to, for the totals of snapshots."""

import msgspec


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over live entries, and over those that are added; `own_bytes` counts of a deletion vector its blob alone."""

    data_files: int = 0
    records: int = 0
    delete_files: int = 0
    position_deletes: int = 0
    equality_deletes: int = 0
    bytes: int = 0
    own_bytes: int = 0
    added_data_files: int = 0
    added_records: int = 0
    added_delete_files: int = 0
    added_position_deletes: int = 0
    added_equality_deletes: int = 0
    added_bytes: int = 0
    added_own_bytes: int = 0


SUMS = Counted.__struct_fields__
