import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.Closeable;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.AppendFiles;
import org.apache.iceberg.BaseTable;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DeleteFile;
import org.apache.iceberg.FileFormat;
import org.apache.iceberg.FileScanTask;
import org.apache.iceberg.MetadataTableType;
import org.apache.iceberg.MetadataTableUtils;
import org.apache.iceberg.PartitionKey;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.PartitionStatistics;
import org.apache.iceberg.Partitioning;
import org.apache.iceberg.Schema;
import org.apache.iceberg.SchemaParser;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableMetadataParser;
import org.apache.iceberg.TableScan;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.catalog.SupportsNamespaces;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.data.GenericFileWriterFactory;
import org.apache.iceberg.data.GenericRecord;
import org.apache.iceberg.data.IcebergGenerics;
import org.apache.iceberg.data.InternalRecordWrapper;
import org.apache.iceberg.expressions.Expressions;
import org.apache.iceberg.expressions.Literal;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.io.CloseableIterator;
import org.apache.iceberg.io.DataWriter;
import org.apache.iceberg.io.OutputFileFactory;
import org.apache.iceberg.types.Type;
import org.apache.iceberg.types.Types;

/** Tables in catalogs, by Iceberg's own library, with no Spark between: it knows types that Spark has not. */
public class Tables {
  private static final JsonNodeFactory NODES = JsonNodeFactory.instance;
  private static final Map CATALOGS = new HashMap();
  private static long operations = 0;

  /** Name a catalog; one of the same name before is forgotten. */
  public static JsonNode open(JsonNode request) throws Exception {
    String name = request.required("name").textValue();
    if (CATALOGS.get(name) instanceof Closeable) {
      ((Closeable) CATALOGS.get(name)).close();
    }
    Map properties = strings(request.required("properties"));
    Configuration configuration = new Configuration();
    for (Iterator keys = properties.keySet().iterator(); keys.hasNext(); ) {
      String key = (String) keys.next();
      // As Iceberg's Spark catalogs take properties of Hadoop.
      if (key.startsWith("hadoop.")) {
        configuration.set(key.substring("hadoop.".length()), (String) properties.get(key));
      }
    }
    CATALOGS.put(name, CatalogUtil.buildIcebergCatalog(name, properties, configuration));
    return NODES.nullNode();
  }

  /** Create a table, and its namespace if that is missing; field ids are assigned anew. */
  public static JsonNode create(JsonNode request) {
    TableIdentifier identifier = identifier(request);
    SupportsNamespaces namespaces = (SupportsNamespaces) catalog(request);
    if (!namespaces.namespaceExists(identifier.namespace())) {
      namespaces.createNamespace(identifier.namespace());
    }
    Schema schema = Judge.schema(request);
    JsonNode spec = request.required("spec");
    PartitionSpec partitions =
        spec.isNull() ? PartitionSpec.unpartitioned() : Judge.spec(request);
    catalog(request).createTable(identifier, schema, partitions, strings(request.required("properties")));
    return metadata(request);
  }

  /** Add an optional column of a primitive type, with a default. */
  public static JsonNode addColumn(JsonNode request) {
    Type type = Types.fromPrimitiveString(request.required("type").textValue());
    Literal value = Expressions.lit(Wire.fromWire(type, request.required("default"), false));
    table(request).updateSchema().addColumn(request.required("name").textValue(), type, value).commit();
    return NODES.nullNode();
  }

  /** Write rows to `files` files a partition, at most, and commit them in one snapshot. */
  public static JsonNode append(JsonNode request) throws Exception {
    Table table = table(request);
    AppendFiles append = table.newAppend();
    for (Iterator files = dataFiles(table, request, request.required("files").intValue()).iterator(); files.hasNext(); ) {
      append.appendFile((DataFile) files.next());
    }
    append.commit();
    return NODES.nullNode();
  }

  /** Write the `rows` of a request in its `format` to `files` files a partition, at most, and commit nothing. */
  static List dataFiles(Table table, JsonNode request, int files) throws Exception {
    FileFormat format = FileFormat.fromString(request.required("format").textValue());
    GenericFileWriterFactory writers = new GenericFileWriterFactory.Builder(table).dataFileFormat(format).build();
    OutputFileFactory places = places(table, format);
    Map groups = new LinkedHashMap();
    JsonNode rows = request.required("rows");
    InternalRecordWrapper internal = new InternalRecordWrapper(table.schema().asStruct());
    for (int i = 0; i < rows.size(); i++) {
      GenericRecord record = Wire.record(table.schema().asStruct(), rows.required(i), true);
      PartitionKey key = new PartitionKey(table.spec(), table.schema());
      key.partition(internal.wrap(record));
      Object group = new ArrayList(java.util.Arrays.asList(new Object[] {key, Integer.valueOf(i % files)}));
      if (!groups.containsKey(group)) {
        groups.put(group, new ArrayList());
      }
      ((List) groups.get(group)).add(record);
    }
    List written = new ArrayList();
    for (Iterator entries = groups.entrySet().iterator(); entries.hasNext(); ) {
      Map.Entry entry = (Map.Entry) entries.next();
      PartitionKey key = (PartitionKey) ((List) entry.getKey()).get(0);
      DataWriter writer =
          writers.newDataWriter(
              places.newOutputFile(table.spec(), key), table.spec(), table.spec().isUnpartitioned() ? null : key);
      for (Iterator records = ((List) entry.getValue()).iterator(); records.hasNext(); ) {
        writer.write(records.next());
      }
      writer.close();
      written.add(writer.toDataFile());
    }
    return written;
  }

  /** Names for new files of a table. */
  static OutputFileFactory places(Table table, FileFormat format) {
    operations = operations + 1;
    return OutputFileFactory.builderFor(table, 0, operations).format(format).build();
  }

  /** The rows, read by Iceberg's generic reader. */
  public static JsonNode rows(JsonNode request) throws Exception {
    Table table = table(request);
    IcebergGenerics.ScanBuilder scan = IcebergGenerics.read(table).where(Filters.parse(request.required("filter")));
    JsonNode snapshot = request.required("snapshot_id");
    Schema schema = table.schema();
    JsonNode after = request.required("after_snapshot_id");
    if (!after.isNull()) {
      scan = scan.appendsBetween(after.longValue(), snapshot.longValue());
    } else if (!snapshot.isNull()) {
      scan = scan.useSnapshot(snapshot.longValue());
      schema = (Schema) table.schemas().get(table.snapshot(snapshot.longValue()).schemaId());
      scan = scan.project(schema);
    }
    ArrayNode rows = NODES.arrayNode();
    CloseableIterable records = scan.build();
    for (CloseableIterator iterator = records.iterator(); iterator.hasNext(); ) {
      rows.add(Wire.toWire(schema.asStruct(), iterator.next()));
    }
    records.close();
    return table(rows, schema);
  }

  /** A metadata table, such as `entries`. */
  public static JsonNode inspect(JsonNode request) throws Exception {
    MetadataTableType type = MetadataTableType.from(request.required("name").textValue());
    Table table = MetadataTableUtils.createMetadataTableInstance(table(request), type);
    TableScan scan = table.newScan();
    ArrayNode rows = NODES.arrayNode();
    CloseableIterable tasks = scan.planFiles();
    for (CloseableIterator iterator = tasks.iterator(); iterator.hasNext(); ) {
      CloseableIterable records = ((FileScanTask) iterator.next()).asDataTask().rows();
      for (CloseableIterator inner = records.iterator(); inner.hasNext(); ) {
        rows.add(Wire.toWire(scan.schema().asStruct(), inner.next()));
      }
      records.close();
    }
    tasks.close();
    return table(rows, scan.schema());
  }

  /** The partition statistics of a snapshot, and the type of their partitions; `null` where a count is not known. */
  public static JsonNode partitionStats(JsonNode request) throws Exception {
    Table table = table(request);
    Types.StructType type = Partitioning.partitionType(table);
    ArrayNode rows = NODES.arrayNode();
    CloseableIterable scan =
        table.newPartitionStatisticsScan().useSnapshot(request.required("snapshot_id").longValue()).scan();
    for (CloseableIterator iterator = scan.iterator(); iterator.hasNext(); ) {
      PartitionStatistics stats = (PartitionStatistics) iterator.next();
      ArrayNode row = NODES.arrayNode();
      row.add(Wire.toWire(type, stats.partition()));
      Object[] counts = {
        stats.specId(),
        stats.dataRecordCount(),
        stats.dataFileCount(),
        stats.totalDataFileSizeInBytes(),
        stats.positionDeleteRecordCount(),
        stats.positionDeleteFileCount(),
        stats.equalityDeleteRecordCount(),
        stats.equalityDeleteFileCount(),
        stats.dvCount(),
        stats.totalRecords(),
        stats.lastUpdatedAt(),
        stats.lastUpdatedSnapshotId()
      };
      for (int i = 0; i < counts.length; i++) {
        if (counts[i] == null) {
          row.addNull();
        } else {
          row.add(((Number) counts[i]).longValue());
        }
      }
      rows.add(row);
    }
    scan.close();
    return table(rows, new Schema(type.fields()));
  }

  /** Expire all snapshots that are older than a time but the last, and clean up as this library does by itself. */
  public static JsonNode expire(JsonNode request) {
    long olderThanMs = request.get("older_than_ms").asLong();
    table(request).expireSnapshots().expireOlderThan(olderThanMs).retainLast(1).commit();
    return NODES.nullNode();
  }

  /** The metadata that was read for the table, as Iceberg writes it. */
  public static JsonNode metadata(JsonNode request) {
    return NODES.textNode(TableMetadataParser.toJson(((BaseTable) table(request)).operations().current()));
  }

  /** The files that a scan reads, each with its delete files and what is left of the filter. */
  public static JsonNode plan(JsonNode request) throws Exception {
    TableScan scan = table(request).newScan();
    JsonNode snapshot = request.required("snapshot_id");
    if (!snapshot.isNull()) {
      scan = (TableScan) scan.useSnapshot(snapshot.longValue());
    }
    scan = (TableScan) scan.filter(Filters.parse(request.required("filter")));
    ArrayNode files = NODES.arrayNode();
    CloseableIterable tasks = scan.planFiles();
    for (CloseableIterator iterator = tasks.iterator(); iterator.hasNext(); ) {
      FileScanTask task = (FileScanTask) iterator.next();
      ObjectNode file = NODES.objectNode();
      file.put("file_path", ((DataFile) task.file()).location());
      file.put("residual", task.residual().toString());
      ArrayNode deletes = NODES.arrayNode();
      for (int i = 0; i < task.deletes().size(); i++) {
        deletes.add(((DeleteFile) task.deletes().get(i)).location());
      }
      file.set("delete_paths", deletes);
      files.add(file);
    }
    tasks.close();
    return files;
  }

  private static JsonNode table(ArrayNode rows, Schema schema) throws Exception {
    ObjectNode answer = NODES.objectNode();
    answer.set("schema", new ObjectMapper().readTree(SchemaParser.toJson(schema)));
    answer.set("rows", rows);
    return answer;
  }

  private static Catalog catalog(JsonNode request) {
    String name = request.required("table").required(0).textValue();
    Catalog catalog = (Catalog) CATALOGS.get(name);
    if (catalog == null) {
      throw new IllegalArgumentException("no catalog was opened by the name " + name);
    }
    return catalog;
  }

  private static TableIdentifier identifier(JsonNode request) {
    JsonNode parts = request.required("table");
    String[] levels = new String[parts.size() - 2];
    for (int i = 0; i < levels.length; i++) {
      levels[i] = parts.required(i + 1).textValue();
    }
    return TableIdentifier.of(Namespace.of(levels), parts.required(parts.size() - 1).textValue());
  }

  static Table table(JsonNode request) {
    return catalog(request).loadTable(identifier(request));
  }

  private static Map strings(JsonNode node) {
    Map strings = new HashMap();
    for (Iterator names = node.fieldNames(); names.hasNext(); ) {
      String name = (String) names.next();
      strings.put(name, node.required(name).textValue());
    }
    return strings;
  }
}
