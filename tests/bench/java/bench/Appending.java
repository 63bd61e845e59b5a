package bench;

import org.apache.iceberg.DataFile;
import org.apache.iceberg.DataFiles;
import org.apache.iceberg.FileFormat;
import org.apache.iceberg.Table;

/** Appends files that do not exist, so that a commit alone is timed. */
public final class Appending {
  private Appending() {}

  /** One data file in one commit, which merges manifests where the table has enough of them. */
  public static void append(Table table, String path, String partitionPath, long bytes, long records) {
    DataFile file =
        DataFiles.builder(table.spec())
            .withPath(path)
            .withFormat(FileFormat.PARQUET)
            .withPartitionPath(partitionPath)
            .withFileSizeInBytes(bytes)
            .withRecordCount(records)
            .build();
    table.newAppend().appendFile(file).commit();
  }
}
