import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.iceberg.LocationProviders;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.Table;
import org.apache.iceberg.io.LocationProvider;
import org.apache.iceberg.parquet.ParquetBloomRowGroupFilter;
import org.apache.iceberg.shaded.org.apache.parquet.column.page.PageReadStore;
import org.apache.iceberg.shaded.org.apache.parquet.hadoop.ParquetFileReader;
import org.apache.iceberg.shaded.org.apache.parquet.hadoop.metadata.BlockMetaData;
import org.apache.iceberg.shaded.org.apache.parquet.hadoop.metadata.ColumnChunkMetaData;
import org.apache.iceberg.shaded.org.apache.parquet.internal.column.columnindex.ColumnIndex;
import org.apache.iceberg.shaded.org.apache.parquet.internal.column.columnindex.OffsetIndex;

/** Data files: where Iceberg would put them, and what Parquet's own reader finds in them. */
public class ParquetFiles {
  private static final JsonNodeFactory NODES = JsonNodeFactory.instance;

  /** The location of a new data file of a table with some properties. */
  public static JsonNode location(JsonNode request) {
    Map properties = new HashMap();
    for (Iterator names = request.required("properties").fieldNames(); names.hasNext(); ) {
      String name = (String) names.next();
      properties.put(name, request.required("properties").required(name).textValue());
    }
    LocationProvider places = LocationProviders.locationsFor(request.required("location").textValue(), properties);
    String fileName = request.required("file_name").textValue();
    PartitionSpec spec = Judge.spec(request);
    if (spec.isUnpartitioned()) {
      return NODES.textNode(places.newDataLocation(fileName));
    }
    return NODES.textNode(
        places.newDataLocation(
            spec, Wire.record(spec.partitionType(), request.required("partition"), false), fileName));
  }

  /** Of each row group of a Parquet file, whether Iceberg reads it for a filter, going by the bloom filters alone. */
  public static JsonNode bloomFilters(JsonNode request) throws Exception {
    Table table = Tables.table(request);
    ParquetBloomRowGroupFilter filter =
        new ParquetBloomRowGroupFilter(table.schema(), Filters.parse(request.required("filter")));
    ArrayNode reads = NODES.arrayNode();
    ParquetFileReader reader = open(request);
    for (Iterator groups = reader.getRowGroups().iterator(); groups.hasNext(); ) {
      BlockMetaData group = (BlockMetaData) groups.next();
      reads.add(
          filter.shouldRead(
              reader.getFileMetaData().getSchema(), group, reader.getBloomFilterDataReader(group)));
    }
    reader.close();
    return reads;
  }

  /** The row groups of a Parquet file, every page read: rows, and by column the rows of the indexed pages. */
  public static JsonNode rowGroups(JsonNode request) throws Exception {
    ArrayNode answer = NODES.arrayNode();
    ParquetFileReader reader = open(request);
    for (Iterator groups = reader.getRowGroups().iterator(); groups.hasNext(); ) {
      BlockMetaData group = (BlockMetaData) groups.next();
      PageReadStore pages = reader.readNextRowGroup();
      ObjectNode columns = NODES.objectNode();
      for (Iterator chunks = group.getColumns().iterator(); chunks.hasNext(); ) {
        ColumnChunkMetaData chunk = (ColumnChunkMetaData) chunks.next();
        columns.set(chunk.getPath().toDotString(), pageStarts(reader, chunk, group.getRowCount()));
      }
      ObjectNode one = NODES.objectNode();
      one.put("rows", pages.getRowCount());
      one.set("pages", columns);
      answer.add(one);
    }
    reader.close();
    return answer;
  }

  private static JsonNode pageStarts(ParquetFileReader reader, ColumnChunkMetaData chunk, long rows) throws Exception {
    OffsetIndex offsets = reader.readOffsetIndex(chunk);
    ColumnIndex bounds = reader.readColumnIndex(chunk);
    if (offsets == null) {
      return NODES.nullNode();
    }
    if (bounds != null && bounds.getNullPages().size() != offsets.getPageCount()) {
      throw new IllegalStateException(chunk.getPath() + " has other pages in its column index than in its offset index");
    }
    ArrayNode starts = NODES.arrayNode();
    for (int i = 0; i < offsets.getPageCount(); i++) {
      long first = offsets.getFirstRowIndex(i);
      if (first < 0 || first > offsets.getLastRowIndex(i, rows)) {
        throw new IllegalStateException("page " + i + " of " + chunk.getPath() + " has no rows");
      }
      starts.add(first);
    }
    return starts;
  }

  private static ParquetFileReader open(JsonNode request) throws Exception {
    return ParquetFileReader.open(new Configuration(), new Path(request.required("file_path").textValue()));
  }
}
