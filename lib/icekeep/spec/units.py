"""Units of sizes and spans, and the largest numbers of Java's types, which Iceberg writes where there is no limit."""

MIB = 1 << 20
GIB = 1 << 30

SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
DAY_SECONDS = DAY_MS // SECOND_MS

MAX_INT = 2**31 - 1
MAX_LONG = 2**63 - 1
