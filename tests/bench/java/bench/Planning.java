package bench;

import java.util.Map;
import org.apache.iceberg.BatchScan;
import org.apache.iceberg.FileScanTask;
import org.apache.iceberg.ScanTask;
import org.apache.iceberg.SparkDistributedDataScan;
import org.apache.iceberg.Table;
import org.apache.iceberg.actions.BinPackRewriteFilePlanner;
import org.apache.iceberg.actions.BinPackRewritePositionDeletePlanner;
import org.apache.iceberg.actions.RewriteGroupBase;
import org.apache.iceberg.expressions.Expression;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.spark.Spark3Util;
import org.apache.iceberg.spark.SparkReadConf;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.datasources.SparkExpressionConverter;

/** Plans a table as Spark's source of Iceberg does, and adds up the tasks without leaving the JVM. */
public final class Planning {
  private Planning() {}

  /** The table anew: one that was planned before remembers its list of manifests. */
  public static Table load(SparkSession spark, String name) throws Exception {
    return Spark3Util.loadIcebergTable(spark, name);
  }

  /** How many files a filter in Spark's SQL needs and how many bytes these have; the session says where it is planned. */
  public static long[] plan(SparkSession spark, Table table, String name, String where) throws Exception {
    SparkReadConf conf = new SparkReadConf(spark, table);
    BatchScan scan =
        conf.distributedPlanningEnabled() ? new SparkDistributedDataScan(spark, table, conf) : table.newBatchScan();
    long files = 0;
    long bytes = 0;
    try (CloseableIterable<ScanTask> tasks = scan.filter(expression(spark, name, where)).planFiles()) {
      for (ScanTask task : tasks) {
        files += 1;
        bytes += ((FileScanTask) task).file().fileSizeInBytes();
      }
    }
    return new long[] {files, bytes};
  }

  /** How many files `rewrite_data_files` would rewrite by binpack, with default options, and how many bytes these have. */
  public static long[] planCompaction(Table table) throws Exception {
    BinPackRewriteFilePlanner planner = new BinPackRewriteFilePlanner(table);
    planner.init(Map.of());
    return sums(planner.plan().groups());
  }

  /** The same of `rewrite_position_delete_files`. */
  public static long[] planPositionDeletes(Table table) throws Exception {
    BinPackRewritePositionDeletePlanner planner = new BinPackRewritePositionDeletePlanner(table);
    planner.init(Map.of());
    return sums(planner.plan().groups());
  }

  private static long[] sums(CloseableIterable<? extends RewriteGroupBase<?, ?, ?>> planned) throws Exception {
    long files = 0;
    long bytes = 0;
    try (CloseableIterable<? extends RewriteGroupBase<?, ?, ?>> groups = planned) {
      for (RewriteGroupBase<?, ?, ?> group : groups) {
        files += group.inputFileNum();
        bytes += group.inputFilesSizeInBytes();
      }
    }
    return new long[] {files, bytes};
  }

  private static Expression expression(SparkSession spark, String name, String where) throws Exception {
    return SparkExpressionConverter.convertToIcebergExpression(
        SparkExpressionConverter.collectResolvedSparkExpression(spark, name, where));
  }
}
