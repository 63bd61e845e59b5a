import java.math.BigDecimal;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.flink.table.catalog.Column;
import org.apache.flink.table.catalog.ResolvedSchema;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.types.Row;
import org.apache.flink.types.RowKind;

/** Rows on their way to Flink, where the type of a column says what a value is, and back, where {@code {kind: text}} does. */
final class Values {
  private Values() {}

  /** A row of its kind's short name and its values. */
  static Row row(JsonNode node, ResolvedSchema columns) {
    List<Column> all = columns.getColumns();
    Row row = new Row(kind(node.get(0).asText()), all.size());
    for (int i = 0; i < all.size(); i++) {
      row.setField(i, value(node.get(i + 1), all.get(i).getDataType().getLogicalType()));
    }
    return row;
  }

  /** A row's values as JSON has them; `kit.rows.untagged` reads them. */
  static List<Object> told(Row row) {
    List<Object> values = new ArrayList<>();
    for (int i = 0; i < row.getArity(); i++) {
      values.add(told(row.getField(i)));
    }
    return values;
  }

  private static RowKind kind(String shortName) {
    for (RowKind kind : RowKind.values()) {
      if (kind.shortString().equals(shortName)) {
        return kind;
      }
    }
    throw new IllegalArgumentException("no kind of rows: " + shortName);
  }

  private static Object value(JsonNode node, LogicalType type) {
    if (node.isNull()) {
      return null;
    }
    switch (type.getTypeRoot()) {
      case BIGINT:
        return node.asLong();
      case INTEGER:
        return node.asInt();
      case DOUBLE:
        return Double.parseDouble(node.asText());
      case BOOLEAN:
        return node.asBoolean();
      case VARCHAR:
        return node.asText();
      case DECIMAL:
        return new BigDecimal(node.asText());
      case DATE:
        return LocalDate.parse(node.asText());
      case TIMESTAMP_WITHOUT_TIME_ZONE:
        return LocalDateTime.parse(node.asText());
      case TIMESTAMP_WITH_LOCAL_TIME_ZONE:
        return LocalDateTime.parse(node.asText()).toInstant(ZoneOffset.UTC);
      case VARBINARY:
        return HexFormat.of().parseHex(node.asText());
      default:
        throw new IllegalArgumentException("no values are known of " + type);
    }
  }

  private static Object told(Object value) {
    if (value instanceof Double || value instanceof Float) {
      return Map.of("float", value.toString());
    } else if (value instanceof BigDecimal) {
      return Map.of("decimal", ((BigDecimal) value).toPlainString());
    } else if (value instanceof LocalDate) {
      return Map.of("date", value.toString());
    } else if (value instanceof LocalDateTime) {
      return Map.of("timestamp", value.toString());
    } else if (value instanceof Instant) {
      return Map.of("timestamp", LocalDateTime.ofInstant((Instant) value, ZoneOffset.UTC).toString());
    } else if (value instanceof byte[]) {
      return Map.of("bytes", HexFormat.of().formatHex((byte[]) value));
    } else if (value instanceof Object[]) {
      List<Object> items = new ArrayList<>();
      for (Object item : (Object[]) value) {
        items.add(told(item));
      }
      return items;
    }
    return value;
  }
}
