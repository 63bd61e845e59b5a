import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.function.Function;
import org.apache.iceberg.ContentFile;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DeleteFile;
import org.apache.iceberg.FileContent;
import org.apache.iceberg.FileFormat;
import org.apache.iceberg.FileMetadata;
import org.apache.iceberg.FileScanTask;
import org.apache.iceberg.MetadataColumns;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.RowDelta;
import org.apache.iceberg.Schema;
import org.apache.iceberg.StructLike;
import org.apache.iceberg.Table;
import org.apache.iceberg.data.BaseDeleteLoader;
import org.apache.iceberg.data.GenericFileWriterFactory;
import org.apache.iceberg.data.IcebergGenerics;
import org.apache.iceberg.data.Record;
import org.apache.iceberg.deletes.BaseDVFileWriter;
import org.apache.iceberg.deletes.EqualityDeleteWriter;
import org.apache.iceberg.deletes.PositionDelete;
import org.apache.iceberg.deletes.PositionDeleteWriter;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.io.CloseableIterator;
import org.apache.iceberg.io.DeleteWriteResult;
import org.apache.iceberg.types.TypeUtil;

/** Rows deleted by delete files of every kind, written by Iceberg's own writers and committed by its row delta. */
public class RowDeletes {
  private static final JsonNodeFactory NODES = JsonNodeFactory.instance;

  /**
   * Commit the parts of a request in one snapshot. `java_row_deletes.py` makes them and says what each is: `add`,
   * `equality`, `positions`, `positions_of_added` or `vectors`.
   */
  public static JsonNode commit(JsonNode request) throws Exception {
    Table table = Tables.table(request);
    RowDelta delta = table.newRowDelta();
    if (table.currentSnapshot() != null) {
      delta.validateFromSnapshot(table.currentSnapshot().snapshotId());
    }
    List added = new ArrayList();
    for (Iterator parts = request.required("parts").iterator(); parts.hasNext(); ) {
      JsonNode part = (JsonNode) parts.next();
      String kind = part.required("kind").textValue();
      if (kind.equals("add")) {
        added = Tables.dataFiles(table, part, 1);
        for (Iterator files = added.iterator(); files.hasNext(); ) {
          delta.addRows((DataFile) files.next());
        }
      } else if (kind.equals("equality")) {
        delta.addDeletes(equality(table, part));
      } else if (kind.equals("positions")) {
        positions(table, delta, part, positionsOf(table, part));
      } else if (kind.equals("positions_of_added")) {
        positions(table, delta, part, positionsIn((DataFile) added.get(0), part));
      } else {
        vectors(table, delta, positionsOf(table, part));
      }
    }
    delta.commit();
    return NODES.nullNode();
  }

  private static DeleteFile equality(Table table, JsonNode part) throws Exception {
    PartitionSpec spec = spec(table, part);
    Map ids = new LinkedHashMap();
    for (Iterator names = part.required("columns").iterator(); names.hasNext(); ) {
      ids.put(Integer.valueOf(table.schema().findField(((JsonNode) names.next()).textValue()).fieldId()), null);
    }
    int[] fieldIds = new int[ids.size()];
    int n = 0;
    for (Iterator keys = ids.keySet().iterator(); keys.hasNext(); n++) {
      fieldIds[n] = ((Integer) keys.next()).intValue();
    }
    Schema rowSchema = TypeUtil.select(table.schema(), ids.keySet());
    FileFormat format = format(part);
    GenericFileWriterFactory writers =
        new GenericFileWriterFactory.Builder(table)
            .deleteFileFormat(format)
            .equalityFieldIds(fieldIds)
            .equalityDeleteRowSchema(rowSchema)
            .build();
    // A spec of void fields only is unpartitioned, but names directories all the same.
    StructLike partition = Wire.record(spec.partitionType(), part.required("partition"), false);
    EqualityDeleteWriter writer =
        writers.newEqualityDeleteWriter(Tables.places(table, format).newOutputFile(spec, partition), spec, partition);
    for (Iterator rows = part.required("rows").iterator(); rows.hasNext(); ) {
      writer.write(Wire.record(rowSchema.asStruct(), (JsonNode) rows.next(), true));
    }
    writer.close();
    return writer.toDeleteFile();
  }

  private static void positions(Table table, RowDelta delta, JsonNode part, Map positions) throws Exception {
    FileFormat format = format(part);
    GenericFileWriterFactory writers = new GenericFileWriterFactory.Builder(table).deleteFileFormat(format).build();
    for (Iterator groups = grouped(part, positions).iterator(); groups.hasNext(); ) {
      List files = (List) groups.next();
      ContentFile first = ((Positions) files.get(0)).file;
      PartitionSpec spec = (PartitionSpec) table.specs().get(Integer.valueOf(first.specId()));
      PositionDeleteWriter writer =
          writers.newPositionDeleteWriter(
              Tables.places(table, format).newOutputFile(spec, first.partition()), spec, first.partition());
      PositionDelete row = PositionDelete.create();
      for (Iterator each = files.iterator(); each.hasNext(); ) {
        Positions one = (Positions) each.next();
        for (Iterator numbers = one.numbers.iterator(); numbers.hasNext(); ) {
          writer.write(row.set(one.file.location(), ((Long) numbers.next()).longValue()));
        }
      }
      writer.close();
      DeleteFile file = writer.toDeleteFile();
      if (part.required("referenced").booleanValue()) {
        file = FileMetadata.deleteFileBuilder(spec).copy(file).withReferencedDataFile(first.location()).build();
      }
      delta.addDeletes(file);
    }
  }

  /** The data files that one delete file is for: one, or all of a partition, in the order of their paths. */
  private static List grouped(JsonNode part, Map positions) {
    Map groups = new LinkedHashMap();
    for (Iterator files = positions.values().iterator(); files.hasNext(); ) {
      Positions one = (Positions) files.next();
      String partition = one.file.specId() + " " + one.file.partition();
      String key = part.required("scope").textValue().equals("file") ? one.file.location() : partition;
      if (!groups.containsKey(key)) {
        groups.put(key, new ArrayList());
      }
      ((List) groups.get(key)).add(one);
    }
    return new ArrayList(groups.values());
  }

  private static void vectors(Table table, RowDelta delta, Map positions) throws Exception {
    BaseDVFileWriter writer =
        new BaseDVFileWriter(Tables.places(table, FileFormat.PUFFIN), new PreviousDeletes(table, positions));
    for (Iterator files = positions.values().iterator(); files.hasNext(); ) {
      Positions one = (Positions) files.next();
      PartitionSpec spec = (PartitionSpec) table.specs().get(Integer.valueOf(one.file.specId()));
      for (Iterator numbers = one.numbers.iterator(); numbers.hasNext(); ) {
        long number = ((Long) numbers.next()).longValue();
        writer.delete(one.file.location(), number, spec, one.file.partition());
      }
    }
    writer.close();
    DeleteWriteResult result = writer.result();
    for (Iterator files = result.deleteFiles().iterator(); files.hasNext(); ) {
      delta.addDeletes((DeleteFile) files.next());
    }
    for (Iterator files = result.rewrittenDeleteFiles().iterator(); files.hasNext(); ) {
      delta.removeDeletes((DeleteFile) files.next());
    }
  }

  /** Where the rows that match the filter lie, by path. */
  private static Map positionsOf(Table table, JsonNode part) throws Exception {
    Map positions = new TreeMap();
    CloseableIterable tasks = table.newScan().planFiles();
    for (CloseableIterator iterator = tasks.iterator(); iterator.hasNext(); ) {
      FileScanTask task = (FileScanTask) iterator.next();
      Positions one = new Positions((DataFile) task.file());
      one.deletes.addAll(task.deletes());
      positions.put(one.file.location(), one);
    }
    tasks.close();
    List fields = new ArrayList(table.schema().columns());
    fields.addAll(Arrays.asList(new Object[] {MetadataColumns.FILE_PATH, MetadataColumns.ROW_POSITION}));
    CloseableIterable records =
        IcebergGenerics.read(table).where(Filters.parse(part.required("filter"))).project(new Schema(fields)).build();
    for (CloseableIterator iterator = records.iterator(); iterator.hasNext(); ) {
      Record record = (Record) iterator.next();
      String path = record.getField("_file").toString();
      ((Positions) positions.get(path)).numbers.add(record.getField("_pos"));
    }
    records.close();
    for (Iterator files = positions.values().iterator(); files.hasNext(); ) {
      if (((Positions) files.next()).numbers.isEmpty()) {
        files.remove();
      }
    }
    return positions;
  }

  private static Map positionsIn(DataFile file, JsonNode part) {
    Positions one = new Positions(file);
    for (Iterator numbers = part.required("numbers").iterator(); numbers.hasNext(); ) {
      one.numbers.add(Long.valueOf(((JsonNode) numbers.next()).longValue()));
    }
    Map positions = new HashMap();
    positions.put(file.location(), one);
    return positions;
  }

  private static FileFormat format(JsonNode part) {
    return FileFormat.fromString(part.required("format").textValue());
  }

  private static PartitionSpec spec(Table table, JsonNode part) {
    JsonNode id = part.required("spec_id");
    return id.isNull() ? table.spec() : (PartitionSpec) table.specs().get(Integer.valueOf(id.intValue()));
  }

  /** Rows of a data file, and the deletes that it has already. */
  public static class Positions {
    public final DataFile file;
    public final TreeSet numbers = new TreeSet();
    public final List deletes = new ArrayList();

    public Positions(DataFile file) {
      this.file = file;
    }
  }

  /** What a new vector takes over: the positions that others deleted of its data file before. */
  public static class PreviousDeletes implements Function {
    private final Table table;
    private final Map positions;

    public PreviousDeletes(Table table, Map positions) {
      this.table = table;
      this.positions = positions;
    }

    public Object apply(Object path) {
      List found = new ArrayList();
      for (Iterator deletes = ((Positions) positions.get(path)).deletes.iterator(); deletes.hasNext(); ) {
        DeleteFile delete = (DeleteFile) deletes.next();
        if (delete.content() == FileContent.POSITION_DELETES) {
          found.add(delete);
        }
      }
      if (found.isEmpty()) {
        return null;
      }
      return new BaseDeleteLoader(new Inputs(table)).loadPositionDeletes(found, path.toString());
    }
  }

  /** Opens delete files. */
  public static class Inputs implements Function {
    private final Table table;

    public Inputs(Table table) {
      this.table = table;
    }

    public Object apply(Object file) {
      return table.io().newInputFile((DeleteFile) file);
    }
  }
}
