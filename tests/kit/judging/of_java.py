"""Names of the examples that are Iceberg Java's: what icekeep writes there has not their faults."""

OF_JAVA = "a partition field whose name has a letter beyond ASCII, in manifests of Iceberg Java"
TWO_UUIDS_OF_JAVA = "two partition fields of UUIDs, in manifests of Iceberg Java"
TWO_DECIMALS_OF_JAVA = "two partition fields of decimals, in manifests of Iceberg Java"
TIMES_OF_JAVA = "a time before 1970 with a part of a second, in ORC of Iceberg Java"
ALL_OF_JAVA = (OF_JAVA, TWO_UUIDS_OF_JAVA, TWO_DECIMALS_OF_JAVA, TIMES_OF_JAVA)
