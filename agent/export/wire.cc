#include "agent/export/wire.h"

#include <array>
#include <bit>
#include <cassert>
#include <map>
#include <utility>

#include "common/checksum.h"
#include "common/endian.h"
#include "common/names.h"

namespace statcollect::wire {
namespace {

enum WireType : std::uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

std::size_t VarintBytes(std::uint64_t value) {
  return static_cast<std::size_t>(std::bit_width(value | 1) + 6) / 7;
}

// Encoded size of a field with so many bytes; 0 for an empty field, which is left out.
std::size_t FieldBytes(std::uint32_t field, std::size_t bytes) {
  return bytes == 0 ? 0 : VarintBytes(field << 3) + VarintBytes(bytes) + bytes;
}

// Appends fields to a message. As proto3 does, leaves out what equals the default.
class Writer {
 public:
  void Reserve(std::size_t bytes) { out_.reserve(bytes); }

  void Varint(std::uint64_t value) {
    while (value >= 0x80) {
      out_.push_back(static_cast<char>(value | 0x80));
      value >>= 7;
    }
    out_.push_back(static_cast<char>(value));
  }

  template <typename T>
  void Fixed(T value) {
    StoreLittleEndian(Extend(sizeof(T)), value);
  }

  void Tag(std::uint32_t field, WireType type) { Varint(field << 3 | type); }

  void Number(std::uint32_t field, std::uint64_t value) {
    if (value == 0) return;
    Tag(field, kVarint);
    Varint(value);
  }
  // int32 and int64: negative numbers take ten bytes.
  void Signed(std::uint32_t field, std::int64_t value) {
    Number(field, static_cast<std::uint64_t>(value));
  }

  void Double(std::uint32_t field, double value) {
    const auto bits = std::bit_cast<std::uint64_t>(value);
    if (bits == 0) return;
    Tag(field, kFixed64);
    Fixed(bits);
  }

  void Bytes(std::uint32_t field, std::string_view bytes) {
    if (!bytes.empty()) Message(field, bytes);
  }
  // Present even if empty.
  void Message(std::uint32_t field, std::string_view bytes) {
    Tag(field, kBytes);
    Varint(bytes.size());
    out_.append(bytes);
  }

  // A packed repeated field of n values, `bytes` in all, if there are any. Returns where they go.
  char* PackedFixed(std::uint32_t field, std::size_t bytes) {
    if (bytes == 0) return nullptr;
    Tag(field, kBytes);
    Varint(bytes);
    return Extend(bytes);
  }

  template <typename Map>
  void MapField(std::uint32_t field, const Map& map);

  std::size_t size() const { return out_.size(); }
  std::string Take() { return std::move(out_); }
  const std::string& bytes() const { return out_; }

 private:
  char* Extend(std::size_t bytes) {
    const std::size_t before = out_.size();
    out_.resize(before + bytes);
    return out_.data() + before;
  }

  std::string out_;
};

void MapValue(Writer* entry, const std::string& value) { entry->Bytes(2, value); }
void MapValue(Writer* entry, std::uint64_t value) { entry->Number(2, value); }

template <typename Map>
void Writer::MapField(std::uint32_t field, const Map& map) {
  for (const auto& [key, value] : map) {
    Writer entry;
    entry.Bytes(1, key);
    MapValue(&entry, value);
    Message(field, entry.bytes());
  }
}

// A packed repeated field: put(writer, i) for each record.
template <typename Put>
std::string PackedBytes(std::size_t n, Put put) {
  Writer column;
  column.Reserve(n);
  for (std::size_t i = 0; i < n; ++i) put(&column, i);
  return column.Take();
}

template <typename Put>
void Packed(Writer* message, std::uint32_t field, std::size_t n, Put put) {
  message->Bytes(field, PackedBytes(n, put));
}

template <typename Get>
void PackedVarints(Writer* message, std::uint32_t field, std::size_t n, Get get) {
  Packed(message, field, n, [&](Writer* column, std::size_t i) {
    column->Varint(static_cast<std::uint64_t>(get(i)));
  });
}

std::string Definition(const TensorDef& def) {
  Writer w;
  w.Number(1, def.id);
  w.Bytes(2, def.key.name);
  w.Number(3, static_cast<std::uint64_t>(def.key.kind));
  w.Bytes(4, def.key.output_path);
  w.Number(5, def.key.micro_batch);
  w.Number(6, def.key.call);
  w.Number(7, static_cast<std::uint64_t>(def.key.mode));
  w.Bytes(8, def.parent);
  w.Bytes(9, def.class_name);
  w.Signed(10, def.depth);
  return w.Take();
}

std::string Definition(const Placement& placement) {
  Writer w;
  const auto numbers = [&w](std::uint32_t field, const std::vector<std::int64_t>& values) {
    PackedVarints(&w, field, values.size(), [&](std::size_t i) { return values[i]; });
  };
  numbers(1, placement.global_shape);
  numbers(2, placement.boxes);
  numbers(3, placement.ranges);
  w.Number(4, placement.partial ? 1 : 0);
  w.Number(5, placement.piece);
  w.Number(6, placement.pieces);
  w.Number(7, placement.unordered);
  return w.Take();
}

std::string Definition(const Layout& layout) {
  Writer w;
  w.Number(1, layout.id);
  w.Number(2, static_cast<std::uint64_t>(layout.dtype));
  PackedVarints(&w, 3, layout.shape.size(), [&](std::size_t i) { return layout.shape[i]; });
  w.Number(6, static_cast<std::uint64_t>(layout.hash_kind));
  if (layout.placement) w.Message(7, Definition(*layout.placement));
  return w.Take();
}

// The columns of a batch's statistics as a nested message. They are nearly all of what an agent
// sends, so they are written in one pass: columns of fixed width are written in place; the others,
// which are short, are encoded beforehand, because the message begins with its size.
class StatsMessage {
 public:
  StatsMessage(const StatColumns& columns, std::span<const Layout> known)
      : columns_(columns), known_(known), n_(columns.size()) {
    EncodeVarints();
    CountSums();
  }

  void WriteTo(Writer* w, std::uint32_t field) const {
    w->Reserve(w->size() + FieldBytes(field, Size()) + kSpareBytes);
    w->Tag(field, kBytes);
    w->Varint(Size());
    [[maybe_unused]] const std::size_t begin = w->size();
    for (std::size_t i = 0; i < varints_.size(); ++i)
      w->Bytes(static_cast<std::uint32_t>(i + 1), varints_[i]);
    const std::vector<TensorStats>& stats = columns_.stats;
    Doubles(w, 12, n_, [&](std::size_t i) { return stats[i].min; });
    Doubles(w, 13, n_, [&](std::size_t i) { return stats[i].max; });
    Doubles(w, 14, n_, [&](std::size_t i) { return stats[i].mean; });
    Doubles(w, 15, n_, [&](std::size_t i) { return stats[i].std; });
    Doubles(w, 16, n_, [&](std::size_t i) { return stats[i].l1; });
    Doubles(w, 17, n_, [&](std::size_t i) { return stats[i].l2; });
    Numbers(w, 18, n_, [&](std::size_t i) { return stats[i].hash; });
    w->Number(19, columns_.sketch_width);
    WriteSums(w);
    w->Bytes(22, sample_counts_);
    Doubles(w, 23, columns_.samples.size(), [&](std::size_t i) { return columns_.samples[i]; });
    assert(w->size() == begin + Size());
  }

 private:
  // Room for the small records that follow; the buffer grows if there are more.
  static constexpr std::size_t kSpareBytes = 1024;

  template <typename Get>
  std::string Varints(Get get) const {
    return PackedBytes(n_, [&](Writer* column, std::size_t i) { column->Varint(get(i)); });
  }
  template <typename Get>
  static void Numbers(Writer* w, std::uint32_t field, std::size_t n, Get get) {
    char* const to = w->PackedFixed(field, n * sizeof(std::uint64_t));
    for (std::size_t i = 0; i < n; ++i) StoreLittleEndian(to + i * sizeof(std::uint64_t), get(i));
  }
  template <typename Get>
  static void Doubles(Writer* w, std::uint32_t field, std::size_t n, Get get) {
    Numbers(w, field, n, [&](std::size_t i) { return std::bit_cast<std::uint64_t>(get(i)); });
  }

  void EncodeVarints() {
    const std::vector<TensorStats>& stats = columns_.stats;
    varints_ = {Varints([&](std::size_t i) { return columns_.activation[i]; }),
                Varints([&](std::size_t i) { return columns_.layout[i]; }),
                Varints([&](std::size_t i) { return columns_.step[i]; }),
                Varints([&](std::size_t i) { return columns_.order[i]; }),
                Varints([&](std::size_t i) { return stats[i].nan; }),
                Varints([&](std::size_t i) { return stats[i].pos_inf; }),
                Varints([&](std::size_t i) { return stats[i].neg_inf; }),
                Varints([&](std::size_t i) { return stats[i].zero; }),
                Varints([&](std::size_t i) { return stats[i].neg; }),
                Varints([&](std::size_t i) { return stats[i].pos; }),
                Varints([&](std::size_t i) { return stats[i].has_finite ? 1u : 0u; })};
    if (!columns_.samples.empty())
      sample_counts_ = Varints([&](std::size_t i) { return columns_.sample_count[i]; });
  }

  bool IsWide(std::size_t i) const {
    assert(columns_.layout[i] < known_.size());
    return HasWideSketch(known_[columns_.layout[i]].dtype);
  }

  void CountSums() {
    for (std::size_t i = 0; i < n_ && columns_.sketch_width > 0; ++i)
      (IsWide(i) ? wide_sums_ : narrow_sums_) += columns_.sketch_width;
  }

  // k float32 sums for a narrow record, k float64 sums for a wide one, each kind in record order.
  void WriteSums(Writer* w) const {
    char* narrow = w->PackedFixed(20, narrow_sums_ * sizeof(float));
    for (std::size_t i = 0; i < n_ && narrow_sums_ > 0; ++i) {
      if (IsWide(i)) continue;
      for (const double sum : columns_.SketchOf(i)) {
        StoreLittleEndian(narrow, std::bit_cast<std::uint32_t>(static_cast<float>(sum)));
        narrow += sizeof(float);
      }
    }
    char* wide = w->PackedFixed(21, wide_sums_ * sizeof(double));
    for (std::size_t i = 0; i < n_ && wide_sums_ > 0; ++i) {
      if (!IsWide(i)) continue;
      for (const double sum : columns_.SketchOf(i)) {
        StoreLittleEndian(wide, std::bit_cast<std::uint64_t>(sum));
        wide += sizeof(double);
      }
    }
  }

  std::size_t Size() const {
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < varints_.size(); ++i)
      bytes += FieldBytes(static_cast<std::uint32_t>(i + 1), varints_[i].size());
    for (std::uint32_t field = 12; field <= 18; ++field)
      bytes += FieldBytes(field, n_ * sizeof(double));
    if (columns_.sketch_width > 0)
      bytes += VarintBytes(19 << 3) + VarintBytes(columns_.sketch_width);
    return bytes + FieldBytes(20, narrow_sums_ * sizeof(float)) +
           FieldBytes(21, wide_sums_ * sizeof(double)) + FieldBytes(22, sample_counts_.size()) +
           FieldBytes(23, columns_.samples.size() * sizeof(double));
  }

  const StatColumns& columns_;
  const std::span<const Layout> known_;
  const std::size_t n_;
  std::array<std::string, 11> varints_;  // fields 1 to 11
  std::string sample_counts_;
  std::size_t narrow_sums_ = 0, wide_sums_ = 0;
};

std::string Small(const ScalarRecord& scalar) {
  Writer w;
  w.Bytes(1, scalar.name);
  w.Number(2, scalar.step);
  w.Number(3, scalar.micro_batch);
  w.Double(4, scalar.value);
  return w.Take();
}

std::string Small(const EventRecord& event) {
  Writer w;
  w.Bytes(1, event.kind);
  w.Number(2, event.step);
  w.Signed(3, event.unix_nanos);
  w.Bytes(4, event.text);
  w.MapField(5, event.fields);
  return w.Take();
}

std::uint64_t ZigZag(std::int64_t value) {
  return (static_cast<std::uint64_t>(value) << 1) ^ static_cast<std::uint64_t>(value >> 63);
}

std::string Small(const MemoryRecord& memory) {
  Writer w;
  w.Number(1, memory.step);
  w.Number(2, memory.micro_batch);
  w.Number(3, static_cast<std::uint64_t>(memory.phase));
  w.Bytes(4, memory.device);
  w.Bytes(5, memory.module);
  w.Number(6, memory.present);
  Packed(&w, 7, memory.bytes.size(), [&](Writer* column, std::size_t i) {
    if (memory.Has(static_cast<MemoryQuantity>(i))) column->Varint(ZigZag(memory.bytes[i]));
  });
  return w.Take();
}

std::string Small(const DensityRecord& density) {
  Writer w;
  w.Number(1, density.step);
  w.Number(2, density.micro_batch);
  w.Bytes(3, density.input);
  w.Number(4, static_cast<std::uint64_t>(density.type));
  w.Number(5, ZigZag(density.pad_index));
  w.Number(6, density.valid);
  w.Number(7, density.total);
  PackedVarints(&w, 8, density.valid_per_sample.size(),
                [&](std::size_t i) { return density.valid_per_sample[i]; });
  return w.Take();
}

std::string Small(const SettingRecord& setting) {
  Writer w;
  w.Bytes(1, setting.name);
  w.Bytes(2, setting.value);
  return w.Take();
}

std::string Small(const StepRecord& step) {
  Writer w;
  w.Number(1, step.step);
  w.Signed(2, step.unix_nanos);
  w.Number(3, step.micro_batches);
  return w.Take();
}

std::string Small(const CaptureChunk& chunk) {
  Writer w;
  w.Number(1, chunk.activation);
  w.Number(2, chunk.layout);
  w.Number(3, chunk.step);
  w.Number(4, chunk.elements);
  w.Number(5, chunk.offset);
  w.Bytes(6, chunk.data);
  return w.Take();
}

std::string Small(const ExponentRecord& record) {
  Writer w;
  w.Number(1, record.activation);
  w.Number(2, record.layout);
  w.Number(3, record.step);
  w.Number(4, ZigZag(record.lowest));
  PackedVarints(&w, 5, record.counts.size(), [&](std::size_t i) { return record.counts[i]; });
  return w.Take();
}

// A packed field of numbers of four or eight bytes: get(row) for each row.
template <typename Get>
void PackedOfRows(Writer* w, std::uint32_t field, const std::vector<TokenRow>& rows, Get get) {
  Packed(w, field, rows.size(),
         [&](Writer* column, std::size_t i) { column->Fixed(get(rows[i])); });
}

std::string Small(const TokenRecord& record) {
  Writer w;
  w.Number(1, record.step);
  w.Bytes(2, record.tap);
  w.Number(3, record.call);
  w.Number(4, static_cast<std::uint64_t>(record.dtype));
  w.Number(5, record.columns);
  w.Number(6, record.first_column);
  PackedOfRows(&w, 7, record.rows, [](const TokenRow& row) { return row.key; });
  PackedVarints(&w, 8, record.rows.size(), [&](std::size_t i) { return record.rows[i].position; });
  PackedOfRows(&w, 9, record.rows,
               [](const TokenRow& row) { return std::bit_cast<std::uint32_t>(row.stats.l2); });
  PackedOfRows(&w, 10, record.rows, [](const TokenRow& row) { return row.stats.hash; });
  Packed(&w, 11, record.rows.size(), [&](Writer* column, std::size_t i) {
    for (const float sum : record.rows[i].stats.sketch)
      column->Fixed(std::bit_cast<std::uint32_t>(sum));
  });
  return w.Take();
}

std::string Records(const RecordBatch& batch, std::span<const Layout> known) {
  Writer w;
  for (const TensorDef& def : batch.activations) w.Message(1, Definition(def));
  for (const Layout& layout : batch.layouts) w.Message(2, Definition(layout));
  if (!batch.stats.empty()) StatsMessage(batch.stats, known).WriteTo(&w, 3);
  for (const ScalarRecord& scalar : batch.scalars) w.Message(4, Small(scalar));
  for (const EventRecord& event : batch.events) w.Message(5, Small(event));
  for (const StepRecord& step : batch.steps) w.Message(6, Small(step));
  for (const MemoryRecord& memory : batch.memory) w.Message(7, Small(memory));
  for (const DensityRecord& density : batch.densities) w.Message(8, Small(density));
  for (const SettingRecord& setting : batch.settings) w.Message(9, Small(setting));
  for (const CaptureChunk& chunk : batch.captures) w.Message(10, Small(chunk));
  for (const ExponentRecord& record : batch.exponents) w.Message(11, Small(record));
  for (const TokenRecord& record : batch.tokens) w.Message(12, Small(record));
  return w.Take();
}

std::string AgentMessage(std::uint32_t body, const Writer& message) {
  Writer w;
  w.Message(body, message.bytes());
  return w.Take();
}

// Reads the fields of a message one after another.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  // False at the end, or when the bytes make no sense (then ok() is false).
  bool Next() {
    if (rest_.empty() || !ok_) return false;
    const std::uint64_t tag = Varint();
    field = static_cast<std::uint32_t>(tag >> 3);
    switch (tag & 7) {
      case kVarint:
        number = Varint();
        break;
      case kFixed64:
        Skip(8);
        break;
      case kBytes:
        bytes = Skip(Varint());
        break;
      case kFixed32:
        Skip(4);
        break;
      default:
        ok_ = false;
    }
    is_bytes = (tag & 7) == kBytes;
    is_number = (tag & 7) == kVarint;
    ok_ = ok_ && field != 0;
    return ok_;
  }
  bool ok() const { return ok_; }

  std::uint32_t field = 0;
  bool is_number = false, is_bytes = false;
  std::uint64_t number = 0;
  std::string_view bytes;

 private:
  std::uint64_t Varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      if (rest_.empty()) break;
      const auto byte = static_cast<std::uint8_t>(rest_.front());
      rest_.remove_prefix(1);
      if (shift < 64) value |= std::uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
    ok_ = false;
    return 0;
  }

  std::string_view Skip(std::uint64_t n) {
    if (n > rest_.size()) {
      ok_ = false;
      return {};
    }
    const std::string_view skipped = rest_.substr(0, n);
    rest_.remove_prefix(n);
    return skipped;
  }

  std::string_view rest_;
  bool ok_ = true;
};

bool DecodeLimits(std::string_view bytes, StreamLimits* limits) {
  Reader r(bytes);
  while (r.Next()) {
    const auto value = static_cast<std::uint32_t>(r.number);
    if (!r.is_number || value == 0) continue;  // not said: the default holds
    if (r.field == 1) limits->message_bytes_max = value;
    if (r.field == 2) limits->window_batches_max = value;
    if (r.field == 3) limits->window_bytes_max = value;
    if (r.field == 4) limits->capture_chunk_bytes_max = value;
  }
  return r.ok();
}

bool DecodeWelcome(std::string_view bytes, Welcome* welcome) {
  Reader r(bytes);
  bool limits_ok = true;
  while (r.Next()) {
    if (r.field == 2 && r.is_number) welcome->attempt = static_cast<std::uint32_t>(r.number);
    if (r.field == 3 && r.is_number) welcome->durable_seq = r.number;
    if (r.field == 4 && r.is_bytes) limits_ok = DecodeLimits(r.bytes, &welcome->limits);
    if (r.field == 6 && r.is_number)
      welcome->attempt_start_unix_nanos = static_cast<std::int64_t>(r.number);
    if (r.field == 7 && r.is_bytes && r.bytes.size() == welcome->store.id.size())
      std::copy(r.bytes.begin(), r.bytes.end(), welcome->store.id.begin());
    if (r.field == 8 && r.is_number) welcome->store.epoch = r.number;
  }
  return r.ok() && limits_ok;
}

bool DecodeAck(std::string_view bytes, std::uint64_t* durable_seq) {
  Reader r(bytes);
  while (r.Next()) {
    if (r.field == 1 && r.is_number) *durable_seq = r.number;
  }
  return r.ok();
}

bool DecodeEntry(std::string_view bytes, std::map<std::string, std::string>* map) {
  Reader r(bytes);
  std::string key, value;
  while (r.Next()) {
    if (r.field == 1 && r.is_bytes) key = r.bytes;
    if (r.field == 2 && r.is_bytes) value = r.bytes;
  }
  (*map)[key] = value;
  return r.ok();
}

bool DecodeDirective(std::string_view bytes, Directive* directive) {
  Reader r(bytes);
  bool entries_ok = true;
  while (r.Next()) {
    if (r.field == 1 && r.is_bytes) directive->kind = r.bytes;
    if (r.field == 2 && r.is_bytes)
      entries_ok = DecodeEntry(r.bytes, &directive->arguments) && entries_ok;
  }
  return r.ok() && entries_ok;
}

}  // namespace

std::string EncodeHello(const SessionInfo& session, std::uint64_t first_unacked_seq) {
  Writer w;
  w.Number(1, kProtocolVersion);
  w.Bytes(2, session.run);
  w.Bytes(3, std::string_view(reinterpret_cast<const char*>(session.session.data()),
                              session.session.size()));
  w.Number(4, first_unacked_seq);
  w.Number(5, session.rank);
  w.Number(6, session.local_rank);
  w.Number(7, session.world_size);
  w.Bytes(8, session.host);
  w.Signed(9, session.pid);
  w.Signed(10, session.start_unix_nanos);
  w.Bytes(11, session.launch);
  w.Number(12, static_cast<std::uint64_t>(session.if_exists));
  w.Bytes(13, session.agent_version);
  w.MapField(14, session.config);
  w.Signed(16, session.attempt_start_unix_nanos);
  w.Bytes(18, session.ranks);
  return AgentMessage(1, w);
}

std::string EncodeRecords(const RecordBatch& batch, std::span<const Layout> known) {
  assert(batch.records() > 0);
  return Records(batch, known);
}

std::string EncodeBatch(const EncodedBatch& batch) {
  Writer w;
  w.Number(1, batch.first_seq);
  w.Number(2, batch.records);
  w.Tag(3, kFixed32);
  w.Fixed(Crc32c(batch.bytes));
  w.Bytes(4, batch.bytes);
  w.Number(5, batch.skipped);
  return AgentMessage(2, w);
}

std::string EncodeBatch(const RecordBatch& batch, std::span<const Layout> known) {
  return EncodeBatch(EncodedBatch{.first_seq = batch.first_seq,
                                  .records = static_cast<std::uint32_t>(batch.records()),
                                  .bytes = EncodeRecords(batch, known),
                                  .skipped = batch.skipped});
}

std::string EncodeGoodbye(const AgentCounters& counters) {
  Writer c;
  c.Number(1, counters.produced);
  c.Number(2, counters.acked);
  c.Number(3, counters.pending);
  c.MapField(4, counters.dropped_by_cause);
  c.Number(5, counters.unused ? 1 : 0);
  Writer w;
  w.Message(1, c.bytes());
  return AgentMessage(3, w);
}

Result<CollectorMessage> Decode(std::string_view bytes) {
  CollectorMessage message;
  Reader r(bytes);
  bool ok = true;
  while (ok && r.Next()) {
    // One of them: the last wins.
    if (r.field == 1 && r.is_bytes) {
      if (!message.welcome) message = {.welcome = Welcome()};
      ok = DecodeWelcome(r.bytes, &*message.welcome);
    } else if (r.field == 2 && r.is_bytes) {
      if (!message.ack) message = {.ack = 0};
      ok = DecodeAck(r.bytes, &*message.ack);
    } else if (r.field == 3 && r.is_bytes) {
      if (!message.directive) message = {.directive = Directive()};
      ok = DecodeDirective(r.bytes, &*message.directive);
    }
  }
  if (ok && r.ok()) return message;
  return Status(
      Code::kDataLoss,
      "read the collector's message: " + std::to_string(bytes.size()) +
          " bytes that are not a CollectorMessage; expected statcollectord at the address");
}

}  // namespace statcollect::wire
