import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.lang.reflect.Method;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.iceberg.BaseTable;
import org.apache.iceberg.ContentFile;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DeleteFile;
import org.apache.iceberg.ManifestContent;
import org.apache.iceberg.ManifestFile;
import org.apache.iceberg.ManifestFiles;
import org.apache.iceberg.ManifestReader;
import org.apache.iceberg.ManifestWriter;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.StructLike;
import org.apache.iceberg.Table;
import org.apache.iceberg.inmemory.InMemoryOutputFile;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.io.CloseableIterator;
import org.apache.iceberg.types.Type;
import org.apache.iceberg.types.Types;

/**
 * A snapshot's manifests, each read by itself with its own spec; metadata tables put all specs into one partition type,
 * and leave out the fields whose column was dropped.
 *
 * <p>Iceberg's reader of entries is not public, so it is reached by reflection.
 */
public class Manifests {
  private static final JsonNodeFactory NODES = JsonNodeFactory.instance;

  /**
   * The manifests of a snapshot: the row of the list, the live entries after inheritance, and the row that Iceberg's
   * own writer makes of a manifest that holds them as existing.
   */
  public static JsonNode read(JsonNode request) throws Exception {
    Table table = Tables.table(request);
    JsonNode wanted = request.required("snapshot_id");
    Snapshot snapshot = wanted.isNull() ? table.currentSnapshot() : table.snapshot(wanted.longValue());
    ArrayNode answer = NODES.arrayNode();
    for (Iterator manifests = snapshot.allManifests(table.io()).iterator(); manifests.hasNext(); ) {
      answer.add(one(table, (ManifestFile) manifests.next()));
    }
    return answer;
  }

  /** Commit that a data file is deleted: its entry stays, with that status, beside the others of its manifest. */
  public static JsonNode deleteFile(JsonNode request) {
    Tables.table(request).newDelete().deleteFile(request.required("path").textValue()).commit();
    return NODES.nullNode();
  }

  private static JsonNode one(Table table, ManifestFile manifest) throws Exception {
    boolean data = manifest.content() == ManifestContent.DATA;
    PartitionSpec spec = (PartitionSpec) table.specs().get(Integer.valueOf(manifest.partitionSpecId()));
    int version = ((BaseTable) table).operations().current().formatVersion();
    InMemoryOutputFile output = new InMemoryOutputFile("memory:/written-again.avro");
    ManifestWriter writer =
        data
            ? ManifestFiles.write(version, spec, output, Long.valueOf(1L))
            : ManifestFiles.writeDeleteManifest(version, spec, output, Long.valueOf(1L));
    ManifestReader reader =
        data
            ? ManifestFiles.read(manifest, table.io(), table.specs())
            : ManifestFiles.readDeleteManifest(manifest, table.io(), table.specs());
    Method live = ManifestReader.class.getDeclaredMethod("liveEntries", new Class[0]);
    live.setAccessible(true);
    ArrayNode entries = NODES.arrayNode();
    CloseableIterable found = (CloseableIterable) live.invoke(reader, new Object[0]);
    for (CloseableIterator iterator = found.iterator(); iterator.hasNext(); ) {
      Object entry = iterator.next();
      ContentFile file = (ContentFile) get(entry, "file");
      Long snapshotId = (Long) get(entry, "snapshotId");
      Long sequenceNumber = (Long) get(entry, "dataSequenceNumber");
      Long fileSequenceNumber = (Long) get(entry, "fileSequenceNumber");
      ObjectNode node = file(file, spec);
      number(node, "snapshot_id", snapshotId);
      number(node, "sequence_number", sequenceNumber);
      number(node, "file_sequence_number", fileSequenceNumber);
      entries.add(node);
      writer.existing(file, snapshotId.longValue(), sequenceNumber.longValue(), fileSequenceNumber);
    }
    found.close();
    writer.close();
    ObjectNode answer = NODES.objectNode();
    answer.put("manifest_path", manifest.path());
    answer.put("partition_spec_id", manifest.partitionSpecId());
    answer.put("content", manifest.content().id());
    number(answer, "first_row_id", manifest.firstRowId());
    answer.set("entries", entries);
    answer.set("listed", row(manifest, spec));
    answer.set("recomputed", row(writer.toManifestFile(), spec));
    return answer;
  }

  private static Object get(Object entry, String name) throws Exception {
    Method method = Class.forName("org.apache.iceberg.ManifestEntry").getMethod(name, new Class[0]);
    method.setAccessible(true);
    return method.invoke(entry, new Object[0]);
  }

  private static ObjectNode file(ContentFile file, PartitionSpec spec) {
    ObjectNode node = NODES.objectNode();
    node.put("content", file.content().id());
    node.put("file_path", file.location());
    node.put("file_format", file.format().name());
    node.put("spec_id", file.specId());
    node.set("partition", partition(spec.partitionType(), file.partition()));
    node.put("record_count", file.recordCount());
    node.put("file_size_in_bytes", file.fileSizeInBytes());
    map(node, "column_sizes", file.columnSizes());
    map(node, "value_counts", file.valueCounts());
    map(node, "null_value_counts", file.nullValueCounts());
    map(node, "nan_value_counts", file.nanValueCounts());
    map(node, "lower_bounds", file.lowerBounds());
    map(node, "upper_bounds", file.upperBounds());
    node.put("key_metadata", file.keyMetadata() == null ? null : Wire.hex(file.keyMetadata()));
    list(node, "split_offsets", file.splitOffsets());
    list(node, "equality_ids", file.equalityFieldIds());
    number(node, "sort_order_id", file.sortOrderId());
    number(node, "first_row_id", file instanceof DataFile ? file.firstRowId() : null);
    DeleteFile delete = file instanceof DeleteFile ? (DeleteFile) file : null;
    node.put("referenced_data_file", delete == null ? null : delete.referencedDataFile());
    number(node, "content_offset", delete == null ? null : delete.contentOffset());
    number(node, "content_size_in_bytes", delete == null ? null : delete.contentSizeInBytes());
    return node;
  }

  /** Values of a column that was dropped have no type that Java knows: they are as text. */
  private static ArrayNode partition(Types.StructType type, StructLike values) {
    ArrayNode array = NODES.arrayNode();
    for (int i = 0; i < type.fields().size(); i++) {
      Type fieldType = ((Types.NestedField) type.fields().get(i)).type();
      Object value = values.get(i, Object.class);
      boolean isKnown = fieldType.typeId() != Type.TypeID.UNKNOWN || value == null;
      array.add(isKnown ? Wire.toWire(fieldType, value) : NODES.textNode(value.toString()));
    }
    return array;
  }

  /** Null and false say the same of a type that has no NaN. */
  private static ObjectNode row(ManifestFile manifest, PartitionSpec spec) {
    ObjectNode node = NODES.objectNode();
    number(node, "live_files_count", sum(manifest.addedFilesCount(), manifest.existingFilesCount()));
    number(node, "live_rows_count", sum(manifest.addedRowsCount(), manifest.existingRowsCount()));
    number(node, "deleted_files_count", manifest.deletedFilesCount());
    number(node, "deleted_rows_count", manifest.deletedRowsCount());
    number(node, "min_sequence_number", Long.valueOf(manifest.minSequenceNumber()));
    ArrayNode summaries = NODES.arrayNode();
    List fields = manifest.partitions() == null ? java.util.Collections.EMPTY_LIST : manifest.partitions();
    for (int i = 0; i < fields.size(); i++) {
      ManifestFile.PartitionFieldSummary summary = (ManifestFile.PartitionFieldSummary) fields.get(i);
      Type.TypeID type = ((Types.NestedField) spec.partitionType().fields().get(i)).type().typeId();
      boolean hasNaN = type == Type.TypeID.FLOAT || type == Type.TypeID.DOUBLE;
      ArrayNode parts = NODES.arrayNode();
      parts.add(summary.containsNull());
      parts.add(summary.containsNaN() == null && !hasNaN ? Boolean.FALSE : summary.containsNaN());
      parts.add(summary.lowerBound() == null ? null : Wire.hex(summary.lowerBound()));
      parts.add(summary.upperBound() == null ? null : Wire.hex(summary.upperBound()));
      summaries.add(parts);
    }
    node.set("partitions", summaries);
    return node;
  }

  private static Long sum(Number one, Number other) {
    return Long.valueOf(one.longValue() + other.longValue());
  }

  private static void number(ObjectNode node, String name, Number value) {
    node.set(name, value == null ? NODES.nullNode() : NODES.numberNode(value.longValue()));
  }

  private static void list(ObjectNode node, String name, List values) {
    if (values == null) {
      node.putNull(name);
      return;
    }
    ArrayNode array = node.putArray(name);
    for (Iterator items = values.iterator(); items.hasNext(); ) {
      array.add(((Number) items.next()).longValue());
    }
  }

  private static void map(ObjectNode node, String name, Map values) {
    if (values == null) {
      node.putNull(name);
      return;
    }
    ArrayNode array = node.putArray(name);
    for (Iterator entries = new TreeMap(values).entrySet().iterator(); entries.hasNext(); ) {
      Map.Entry entry = (Map.Entry) entries.next();
      ArrayNode pair = array.addArray();
      pair.add(((Integer) entry.getKey()).intValue());
      if (entry.getValue() instanceof Number) {
        pair.add(((Number) entry.getValue()).longValue());
      } else {
        pair.add(Wire.hex(entry.getValue()));
      }
    }
  }
}
