import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;
import org.apache.iceberg.StructLike;
import org.apache.iceberg.data.GenericRecord;
import org.apache.iceberg.types.Type;
import org.apache.iceberg.types.Types;
import org.apache.iceberg.util.DateTimeUtil;

/**
 * Values as JSON, by their Iceberg types; `java_values.py` is the other side and says what each type looks like.
 *
 * <p>Iceberg has two forms of values: internal (a date is an int), as in metadata and expressions, and generic (a date
 * is a LocalDate), as in the rows of its readers. Both are read here; `fromWire` is told which to make.
 */
public class Wire {
  private static final JsonNodeFactory NODES = JsonNodeFactory.instance;

  public static JsonNode toWire(Type type, Object value) {
    if (value == null) {
      return NODES.nullNode();
    }
    Type.TypeID id = type.typeId();
    if (id == Type.TypeID.STRUCT) {
      return structToWire((Types.StructType) type, (StructLike) value);
    } else if (id == Type.TypeID.LIST) {
      ArrayNode array = NODES.arrayNode();
      Type element = ((Types.ListType) type).elementType();
      for (Iterator items = ((Iterable) value).iterator(); items.hasNext(); ) {
        array.add(toWire(element, items.next()));
      }
      return array;
    } else if (id == Type.TypeID.MAP) {
      return mapToWire((Types.MapType) type, (Map) value);
    } else if (id == Type.TypeID.BOOLEAN) {
      return NODES.booleanNode(((Boolean) value).booleanValue());
    } else if (id == Type.TypeID.INTEGER || id == Type.TypeID.LONG) {
      return NODES.numberNode(((Number) value).longValue());
    } else if (id == Type.TypeID.FLOAT || id == Type.TypeID.DOUBLE) {
      long bits = Double.doubleToLongBits(((Number) value).doubleValue());
      return NODES.textNode(String.format("%016x", new Object[] {Long.valueOf(bits)}));
    } else if (id == Type.TypeID.DECIMAL) {
      return NODES.textNode(((BigDecimal) value).toPlainString());
    } else if (id == Type.TypeID.FIXED || id == Type.TypeID.BINARY) {
      return NODES.textNode(hex(value));
    } else if (id == Type.TypeID.STRING || id == Type.TypeID.UUID) {
      return NODES.textNode(value.toString());
    }
    return NODES.numberNode(ticks(id, value));
  }

  private static JsonNode structToWire(Types.StructType type, StructLike struct) {
    ArrayNode array = NODES.arrayNode();
    for (int i = 0; i < type.fields().size(); i++) {
      Type fieldType = ((Types.NestedField) type.fields().get(i)).type();
      array.add(toWire(fieldType, struct.get(i, Object.class)));
    }
    return array;
  }

  private static JsonNode mapToWire(Types.MapType type, Map map) {
    Map sorted = new TreeMap();
    for (Iterator entries = map.entrySet().iterator(); entries.hasNext(); ) {
      Map.Entry entry = (Map.Entry) entries.next();
      ArrayNode pair = NODES.arrayNode();
      pair.add(toWire(type.keyType(), entry.getKey()));
      pair.add(toWire(type.valueType(), entry.getValue()));
      sorted.put(pair.required(0).toString(), pair);
    }
    ArrayNode array = NODES.arrayNode();
    for (Iterator pairs = sorted.values().iterator(); pairs.hasNext(); ) {
      array.add((JsonNode) pairs.next());
    }
    return array;
  }

  private static long ticks(Type.TypeID id, Object value) {
    if (value instanceof Number) {
      return ((Number) value).longValue();
    } else if (value instanceof LocalDate) {
      return ((LocalDate) value).toEpochDay();
    } else if (value instanceof LocalTime) {
      return ((LocalTime) value).toNanoOfDay() / 1000;
    }
    boolean nanos = id == Type.TypeID.TIMESTAMP_NANO;
    if (value instanceof LocalDateTime) {
      LocalDateTime local = (LocalDateTime) value;
      return nanos ? DateTimeUtil.nanosFromTimestamp(local) : DateTimeUtil.microsFromTimestamp(local);
    }
    OffsetDateTime moment = (OffsetDateTime) value;
    return nanos ? DateTimeUtil.nanosFromTimestamptz(moment) : DateTimeUtil.microsFromTimestamptz(moment);
  }

  public static Object fromWire(Type type, JsonNode node, boolean generic) {
    if (node.isNull()) {
      return null;
    }
    Type.TypeID id = type.typeId();
    if (id == Type.TypeID.STRUCT) {
      return record((Types.StructType) type, node, generic);
    } else if (id == Type.TypeID.LIST) {
      List list = new ArrayList();
      for (int i = 0; i < node.size(); i++) {
        list.add(fromWire(((Types.ListType) type).elementType(), node.required(i), generic));
      }
      return list;
    } else if (id == Type.TypeID.MAP) {
      Types.MapType mapType = (Types.MapType) type;
      Map map = new LinkedHashMap();
      for (int i = 0; i < node.size(); i++) {
        map.put(
            fromWire(mapType.keyType(), node.required(i).required(0), generic),
            fromWire(mapType.valueType(), node.required(i).required(1), generic));
      }
      return map;
    } else if (id == Type.TypeID.BOOLEAN) {
      return Boolean.valueOf(node.booleanValue());
    } else if (id == Type.TypeID.INTEGER) {
      return Integer.valueOf(Math.toIntExact(node.longValue()));
    } else if (id == Type.TypeID.LONG) {
      return Long.valueOf(node.longValue());
    } else if (id == Type.TypeID.FLOAT) {
      return Float.valueOf((float) number(node));
    } else if (id == Type.TypeID.DOUBLE) {
      return Double.valueOf(number(node));
    } else if (id == Type.TypeID.DECIMAL) {
      return new BigDecimal(node.textValue());
    } else if (id == Type.TypeID.FIXED || id == Type.TypeID.BINARY) {
      byte[] bytes = bytes(node.textValue());
      return generic && id == Type.TypeID.FIXED ? (Object) bytes : (Object) ByteBuffer.wrap(bytes);
    } else if (id == Type.TypeID.STRING) {
      return node.textValue();
    } else if (id == Type.TypeID.UUID) {
      return UUID.fromString(node.textValue());
    }
    return generic ? moment(type, node.longValue()) : ticksFromWire(id, node.longValue());
  }

  public static GenericRecord record(Types.StructType type, JsonNode node, boolean generic) {
    GenericRecord record = GenericRecord.create(type);
    for (int i = 0; i < type.fields().size(); i++) {
      record.set(i, fromWire(((Types.NestedField) type.fields().get(i)).type(), node.required(i), generic));
    }
    return record;
  }

  private static double number(JsonNode node) {
    return Double.longBitsToDouble(Long.parseUnsignedLong(node.textValue(), 16));
  }

  private static Object ticksFromWire(Type.TypeID id, long ticks) {
    if (id == Type.TypeID.DATE) {
      return Integer.valueOf(Math.toIntExact(ticks));
    }
    return Long.valueOf(ticks);
  }

  private static Object moment(Type type, long ticks) {
    Type.TypeID id = type.typeId();
    if (id == Type.TypeID.DATE) {
      return LocalDate.ofEpochDay(ticks);
    } else if (id == Type.TypeID.TIME) {
      return DateTimeUtil.timeFromMicros(ticks);
    } else if (id == Type.TypeID.TIMESTAMP) {
      return ((Types.TimestampType) type).shouldAdjustToUTC()
          ? (Object) DateTimeUtil.timestamptzFromMicros(ticks)
          : (Object) DateTimeUtil.timestampFromMicros(ticks);
    }
    return ((Types.TimestampNanoType) type).shouldAdjustToUTC()
        ? (Object) DateTimeUtil.timestamptzFromNanos(ticks)
        : (Object) DateTimeUtil.timestampFromNanos(ticks);
  }

  public static String hex(Object value) {
    byte[] bytes;
    if (value instanceof byte[]) {
      bytes = (byte[]) value;
    } else {
      ByteBuffer buffer = (ByteBuffer) ((ByteBuffer) value).duplicate();
      bytes = new byte[buffer.remaining()];
      buffer.get(bytes);
    }
    StringBuilder text = new StringBuilder();
    for (int i = 0; i < bytes.length; i++) {
      text.append(Character.forDigit((bytes[i] >> 4) & 15, 16));
      text.append(Character.forDigit(bytes[i] & 15, 16));
    }
    return text.toString();
  }

  public static byte[] bytes(String hex) {
    byte[] bytes = new byte[hex.length() / 2];
    for (int i = 0; i < bytes.length; i++) {
      bytes[i] = (byte) Integer.parseInt(hex.substring(2 * i, 2 * i + 2), 16);
    }
    return bytes;
  }
}
