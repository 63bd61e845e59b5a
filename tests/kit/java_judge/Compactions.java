import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.Map;
import java.util.Set;
import org.apache.iceberg.FileFormat;
import org.apache.iceberg.Table;
import org.apache.iceberg.actions.BinPackRewriteFilePlanner;
import org.apache.iceberg.actions.RewriteDataFilesCommitManager;
import org.apache.iceberg.actions.RewriteFileGroup;
import org.apache.iceberg.data.GenericFileWriterFactory;
import org.apache.iceberg.data.IcebergGenerics;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.io.DataWriter;

/**
 * A compaction that takes its time: Iceberg's own planner makes its group, and Iceberg's own commit manager, which every
 * engine's compaction goes through, commits it when it is asked to. Between the two others may write.
 */
public class Compactions {
  private static final JsonNodeFactory NODES = JsonNodeFactory.instance;
  private static final Map STARTED = new HashMap();

  /** Plan the files of a table without partitions, and write their live rows to a new file; returns how many there are. */
  public static JsonNode start(JsonNode request) throws Exception {
    Table table = Tables.table(request);
    BinPackRewriteFilePlanner planner = new BinPackRewriteFilePlanner(table);
    Map options = new HashMap();
    options.put("rewrite-all", "true");
    planner.init(options);
    Iterator groups = planner.plan().groups().iterator();
    RewriteFileGroup group = (RewriteFileGroup) groups.next();
    if (groups.hasNext()) {
      throw new IllegalArgumentException("files of several partitions");
    }
    long snapshotId = table.currentSnapshot().snapshotId();
    FileFormat format = FileFormat.PARQUET;
    DataWriter writer =
        new GenericFileWriterFactory.Builder(table)
            .dataFileFormat(format)
            .build()
            .newDataWriter(Tables.places(table, format).newOutputFile(table.spec(), null), table.spec(), null);
    CloseableIterable rows = IcebergGenerics.read(table).useSnapshot(snapshotId).build();
    int count = 0;
    for (Iterator each = rows.iterator(); each.hasNext(); count++) {
      writer.write(each.next());
    }
    rows.close();
    writer.close();
    Set added = new HashSet();
    added.add(writer.toDataFile());
    group.setOutputFiles(added);
    Set planned = new HashSet();
    planned.add(group);
    STARTED.put(table.name(), new Object[] {new RewriteDataFilesCommitManager(table, snapshotId), planned});
    return NODES.numberNode(count);
  }

  /** Commit what was started last for a table. */
  public static JsonNode commit(JsonNode request) throws Exception {
    Object[] started = (Object[]) STARTED.remove(Tables.table(request).name());
    ((RewriteDataFilesCommitManager) started[0]).commitFileGroups((Set) started[1]);
    return NODES.nullNode();
  }
}
