"""Options of JVMs that tests talk to by lines: they compile little, for long, and warn where nobody takes it for an answer."""

TALKING = ("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m", "-Xlog:disable", "-Xlog:all=warning:stderr")
"""With one compiler a JVM has 48 MB for what it compiles. Flink, which makes classes for each job, fills that in nine minutes,
and says so on stdout."""
