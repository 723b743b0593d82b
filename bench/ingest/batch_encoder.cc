#include "bench/ingest/batch_encoder.h"

#include <bit>
#include <cassert>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>

#include <grpc/slice.h>

#include "common/checksum.h"
#include "proto/convert.h"

namespace statcollect::bench {
namespace {

static_assert(std::endian::native == std::endian::little,
              "columns are copied as they lie in memory");

constexpr std::size_t kHeaderMax = 48;  // what stands before the records of a batch
constexpr std::int64_t kStart =
    1'700'000'000'000'000'000;  // ns since the epoch of step 0; the same in every run
constexpr std::int64_t kStepNanos = 250'000'000;

char* PutVarint(char* to, std::uint64_t value) {
  while (value >= 0x80) {
    *to++ = static_cast<char>(value | 0x80);
    value >>= 7;
  }
  *to++ = static_cast<char>(value);
  return to;
}

std::size_t VarintBytes(std::uint64_t value) {
  return (static_cast<std::size_t>(std::bit_width(value | 1)) + 6) / 7;
}

void AppendVarint(std::string* to, std::uint64_t value) {
  char bytes[10];
  to->append(bytes, PutVarint(bytes, value));
}

void EncodeColumn(const std::vector<std::uint64_t>& values, std::size_t n, std::string* to) {
  to->resize(n * 10);
  char* end = to->data();
  for (std::size_t i = 0; i < n; ++i) end = PutVarint(end, values[i]);
  to->resize(static_cast<std::size_t>(end - to->data()));
}

constexpr std::uint64_t Tag(std::uint32_t field, std::uint32_t type) { return field << 3 | type; }
constexpr std::uint32_t kVarintType = 0, kBytesType = 2, kFixed32Type = 5;

std::size_t FieldBytes(std::uint32_t field, std::size_t payload) {
  return VarintBytes(Tag(field, kBytesType)) + VarintBytes(payload) + payload;
}

char* PutBytes(char* to, std::uint32_t field, std::size_t payload) {
  return PutVarint(PutVarint(to, Tag(field, kBytesType)), payload);
}

char* Copy(char* to, const void* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
  return to + bytes;
}

// One packed column: pieces that follow each other, or one byte repeated.
struct Column {
  std::uint32_t field;
  std::size_t bytes;
  std::vector<std::string_view> pieces;
  char repeated = 0;
};

template <typename T>
std::string_view Raw(const std::vector<T>& values, std::size_t n) {
  return {reinterpret_cast<const char*>(values.data()), n * sizeof(T)};
}

Column Whole(std::uint32_t field, std::string_view bytes) { return {field, bytes.size(), {bytes}}; }
Column Repeated(std::uint32_t field, std::size_t n, char byte) { return {field, n, {}, byte}; }

// The segments' parts of what is the same in every step.
Column Sliced(std::uint32_t field, const std::string& bytes, const std::vector<std::size_t>& begin,
              const std::vector<Segment>& segments) {
  Column column{field, 0, {}};
  for (const Segment& segment : segments) {
    const std::size_t first = begin[segment.first];
    const std::size_t length = begin[segment.first + segment.n] - first;
    column.pieces.push_back(std::string_view(bytes).substr(first, length));
    column.bytes += length;
  }
  return column;
}

// Writes what stands before the records of a batch so that it ends at `records`; returns its
// length.
std::size_t PutHeader(char* records, std::size_t bytes, std::uint64_t first_seq,
                      std::uint32_t count) {
  const std::uint32_t crc = Crc32c({records, bytes});
  char batch[kHeaderMax];
  char* b = PutVarint(PutVarint(batch, Tag(1, kVarintType)), first_seq);
  b = PutVarint(PutVarint(b, Tag(2, kVarintType)), count);
  b = Copy(PutVarint(b, Tag(3, kFixed32Type)), &crc, sizeof(crc));
  b = PutBytes(b, 4, bytes);
  const auto batch_bytes = static_cast<std::size_t>(b - batch);
  char header[kHeaderMax];
  char* h = PutBytes(header, 2, batch_bytes + bytes);
  h = Copy(h, batch, batch_bytes);
  const auto header_bytes = static_cast<std::size_t>(h - header);
  assert(header_bytes <= kHeaderMax);
  std::memcpy(records - header_bytes, header, header_bytes);
  return header_bytes;
}

char* Put(char* to, const Column& column) {
  if (column.bytes == 0) return to;
  to = PutBytes(to, column.field, column.bytes);
  for (const std::string_view piece : column.pieces) to = Copy(to, piece.data(), piece.size());
  if (column.pieces.empty()) {
    std::memset(to, column.repeated, column.bytes);
    to += column.bytes;
  }
  return to;
}

// The loss and the end of every step that these segments finish.
std::uint32_t EncodeStepEnds(const std::vector<Segment>& segments, std::uint32_t activations,
                             std::string* to) {
  v1::Records small;
  std::uint32_t records = 0;
  for (const Segment& segment : segments) {
    if (segment.first + segment.n != activations) continue;
    v1::Scalar* loss = small.add_scalars();
    loss->set_name("loss");
    loss->set_step(segment.step);
    loss->set_value(10.0 / (1.0 + 0.01 * static_cast<double>(segment.step)));
    v1::StepEnd* end = small.add_steps();
    end->set_step(segment.step);
    end->set_unix_nanos(kStart + kStepNanos * static_cast<std::int64_t>(segment.step));
    end->set_micro_batches(1);
    records += 2;
  }
  small.SerializeToString(to);
  return records;
}

// Activations are cut along their features, parameters along their rows.
void Cut(std::uint32_t rank, std::uint32_t shards, bool parameter, Layout* layout) {
  Placement place{.global_shape = layout->shape, .boxes = {}, .ranges = {}};
  const std::size_t dim = parameter ? 0 : layout->shape.size() - 1;
  layout->shape[dim] /= shards;
  std::vector<std::int64_t> offset(layout->shape.size());
  offset[dim] = rank * layout->shape[dim];
  place.boxes = offset;
  place.boxes.insert(place.boxes.end(), layout->shape.begin(), layout->shape.end());
  layout->placement = std::move(place);
}

// Serialized Records with nothing but the definitions: fields 1 and 2.
std::string EncodeDefinitions(const Network& network, std::uint32_t rank, std::uint32_t shards) {
  RecordBatch batch;
  batch.first_seq = 1;
  batch.activations = network.activations();
  batch.layouts = network.layouts();
  for (Layout& layout : batch.layouts) {
    if (shards > 1) Cut(rank, shards, layout.shape.size() < 3, &layout);
  }
  batch.steps.push_back({});  // a batch holds a record
  v1::Records records;
  records.ParseFromString(ToWire(batch, {}).records());
  records.clear_steps();
  return records.SerializeAsString();
}

}  // namespace

std::size_t BatchBytesMax(std::size_t records, std::uint32_t sketch) {
  // Ids, layout and order up to 3 bytes each, step 5, counts 3 + 3 x 4, 7 numbers of 8, and 64 for
  // a step's end.
  return 256 + records * (3 * 3 + 5 + 3 + 12 + 1 + 7 * 8 + 4 * std::size_t{sketch}) +
         64 * (1 + records);
}

void BatchEncoder::ConstantColumn::Add(std::uint64_t value) {
  if (begin.empty()) begin.push_back(0);
  AppendVarint(&bytes, value);
  begin.push_back(bytes.size());
}

BatchEncoder::BatchEncoder(const RecordMaker& maker) : maker_(maker) {
  // The last shard has the longest numbers.
  definition_bytes_ = EncodeDefinitions(maker.network(), maker.shards() - 1, maker.shards()).size();
  for (std::uint32_t i = 0; i < maker.network().size(); ++i) {
    activation_.Add(i);
    layout_.Add(maker.network().layout_of()[i]);
  }
}

std::size_t BatchEncoder::MakeColumns(std::uint32_t rank, const std::vector<Segment>& segments) {
  std::size_t n = 0;
  for (const Segment& segment : segments) n += segment.n;
  if (columns_.size() < n) columns_.Resize(n, maker_.sketch());
  step_.clear();
  std::size_t at = 0;
  for (const Segment& segment : segments) {
    maker_.Make(rank, segment.step, segment.first, segment.n, at, &columns_);
    at += segment.n;
    char varint[10];
    const std::string_view step(varint,
                                static_cast<std::size_t>(PutVarint(varint, segment.step) - varint));
    for (std::uint32_t i = 0; i < segment.n; ++i) step_ += step;
  }
  EncodeColumn(columns_.zero, n, &zero_);
  EncodeColumn(columns_.neg, n, &neg_);
  EncodeColumn(columns_.pos, n, &pos_);
  return n;
}

BatchEncoder::Encoded BatchEncoder::Encode(std::uint32_t rank, std::uint64_t first_seq,
                                           const std::vector<Segment>& segments, bool define) {
  const std::size_t n = MakeColumns(rank, segments);
  const std::uint32_t k = maker_.sketch();
  const std::uint32_t ends = EncodeStepEnds(segments, maker_.network().size(), &small_);

  const Column columns[] = {Sliced(1, activation_.bytes, activation_.begin, segments),
                            Sliced(2, layout_.bytes, layout_.begin, segments),
                            Whole(3, step_),
                            Sliced(4, activation_.bytes, activation_.begin, segments),
                            Repeated(5, n, 0),
                            Repeated(6, n, 0),
                            Repeated(7, n, 0),
                            Whole(8, zero_),
                            Whole(9, neg_),
                            Whole(10, pos_),
                            Repeated(11, n, 1),
                            Whole(12, Raw(columns_.min, n)),
                            Whole(13, Raw(columns_.max, n)),
                            Whole(14, Raw(columns_.mean, n)),
                            Whole(15, Raw(columns_.std, n)),
                            Whole(16, Raw(columns_.l1, n)),
                            Whole(17, Raw(columns_.l2, n)),
                            Whole(18, Raw(columns_.hash, n))};
  const Column sketch = Whole(20, Raw(columns_.sketch, n * k));
  std::size_t stats = 0;
  for (const Column& column : columns) stats += FieldBytes(column.field, column.bytes);
  if (k > 0)
    stats += VarintBytes(Tag(19, kVarintType)) + VarintBytes(k) + FieldBytes(20, sketch.bytes);
  const std::string definitions =
      define ? EncodeDefinitions(maker_.network(), rank, maker_.shards()) : std::string();
  const std::size_t records = definitions.size() + FieldBytes(3, stats) + small_.size();

  grpc_slice slice = grpc_slice_malloc(kHeaderMax + records);
  char* const begin = reinterpret_cast<char*>(GRPC_SLICE_START_PTR(slice)) + kHeaderMax;
  char* to = begin;
  to = Copy(to, definitions.data(), definitions.size());
  to = PutBytes(to, 3, stats);
  for (const Column& column : columns) to = Put(to, column);
  if (k > 0) to = Put(PutVarint(PutVarint(to, Tag(19, kVarintType)), k), sketch);
  to = Copy(to, small_.data(), small_.size());
  assert(to == begin + records);

  const auto all = static_cast<std::uint32_t>(n) + ends;
  const std::size_t header_bytes = PutHeader(begin, records, first_seq, all);
  const grpc_slice message =
      grpc_slice_sub_no_ref(slice, kHeaderMax - header_bytes, kHeaderMax + records);
  return {.message = grpc::Slice(message, grpc::Slice::STEAL_REF),
          .records = all,
          .stat_records = static_cast<std::uint32_t>(n)};
}

}  // namespace statcollect::bench
