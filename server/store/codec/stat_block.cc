#include "server/store/codec/stat_block.h"

#include <array>

#include "server/store/codec/byte_io.h"
#include "server/store/codec/sealed.h"

namespace statcollect {
namespace {

constexpr std::uint8_t kHasFinite = 1;   // min..l2 follow
constexpr std::uint8_t kWideSketch = 2;  // sketch in float64: some sum is no float32

using CountField = std::uint64_t TensorStats::*;
constexpr std::array<CountField, 7> kCounts = {
    &TensorStats::numel, &TensorStats::nan, &TensorStats::pos_inf, &TensorStats::neg_inf,
    &TensorStats::zero,  &TensorStats::neg, &TensorStats::pos};
using RealField = double TensorStats::*;
constexpr std::array<RealField, 6> kReals = {&TensorStats::min, &TensorStats::max, &TensorStats::mean,
                                             &TensorStats::std, &TensorStats::l1,  &TensorStats::l2};

bool IsFloat(double value) { return static_cast<double>(static_cast<float>(value)) == value; }

bool NeedsWideSketch(std::span<const double> sketch) {
  for (const double sum : sketch) {
    if (!IsFloat(sum)) return true;
  }
  return false;
}

// Differences to the predecessor; the first value counts as a difference to 0.
void WriteDeltas(ByteWriter& out, std::span<const std::uint32_t> values) {
  std::int64_t previous = 0;
  for (const std::uint32_t value : values) {
    out.Signed(static_cast<std::int64_t>(value) - previous);
    previous = value;
  }
}

std::vector<std::uint32_t> ReadDeltas(ByteReader& in, std::size_t count) {
  std::vector<std::uint32_t> values(count);
  std::uint64_t previous = 0;
  for (std::uint32_t& value : values) {
    previous += static_cast<std::uint64_t>(in.Signed());  // wraps; checked below
    if (previous > 0xffffffffu) in.Fail();
    value = static_cast<std::uint32_t>(previous);
  }
  return values;
}

void WriteSketches(ByteWriter& out, const StatColumns& columns, std::size_t first, std::string_view flags) {
  for (std::size_t i = 0; i < flags.size(); ++i) {
    const bool wide = (flags[i] & kWideSketch) != 0;
    for (const double sum : columns.SketchOf(first + i))
      wide ? out.F64(sum) : out.F32(static_cast<float>(sum));
  }
}

void WriteSamples(ByteWriter& out, const StatColumns& columns, std::size_t first, std::size_t count) {
  std::size_t at = 0;
  for (std::size_t i = 0; i < first; ++i) at += columns.sample_count[i];
  std::size_t total = 0;
  for (std::size_t i = first; i < first + count; ++i) {
    out.Varint(columns.sample_count[i]);
    total += columns.sample_count[i];
  }
  for (std::size_t i = at; i < at + total; ++i) out.F64(columns.samples[i]);
}

void ReadSamples(ByteReader& in, std::size_t count, StatColumns& columns) {
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < count; ++i) {
    columns.sample_count.push_back(in.Varint32());
    total += columns.sample_count.back();
  }
  if (total > in.remaining() / sizeof(double)) return in.Fail();
  for (std::uint64_t i = 0; i < total; ++i) columns.samples.push_back(in.F64());
}

}  // namespace

std::string EncodeStatBlock(const StatColumns& columns, std::size_t first, std::size_t count) {
  ByteWriter out;
  out.Varint(count);
  out.Varint(columns.sketch_width);
  WriteDeltas(out, std::span(columns.activation).subspan(first, count));
  WriteDeltas(out, std::span(columns.layout).subspan(first, count));
  WriteDeltas(out, std::span(columns.order).subspan(first, count));
  const auto stats = std::span(columns.stats).subspan(first, count);
  std::string flags;
  for (std::size_t i = 0; i < count; ++i) {
    const bool wide = NeedsWideSketch(columns.SketchOf(first + i));
    flags.push_back(static_cast<char>((stats[i].has_finite ? kHasFinite : 0) | (wide ? kWideSketch : 0)));
  }
  for (const char flag : flags) out.U8(static_cast<std::uint8_t>(flag));
  for (const CountField field : kCounts) {
    for (const TensorStats& s : stats) out.Varint(s.*field);
  }
  for (const RealField field : kReals) {
    for (const TensorStats& s : stats) {
      if (s.has_finite) out.F64(s.*field);
    }
  }
  for (const TensorStats& s : stats) out.U64(s.hash);
  WriteSketches(out, columns, first, flags);
  WriteSamples(out, columns, first, count);
  return Seal(kStatBlockVersion, out.bytes());
}

Result<StatColumns> DecodeStatBlock(std::string_view what, std::string_view bytes, std::uint64_t step) {
  auto payload = Unseal(what, bytes, kStatBlockVersion);
  if (!payload.ok()) return payload.status();
  ByteReader in(*payload);
  StatColumns columns;
  // A record takes at least 3 varints of ids, a flag, 7 counts, 8 bytes of hash and a sample count.
  const std::size_t count = in.Count(20);
  columns.sketch_width = in.Varint32();
  if (count == 0 || count > kBlockRecordsMax || columns.sketch_width > kSketchMax) in.Fail();
  if (in.ok()) {
    columns.activation = ReadDeltas(in, count);
    columns.layout = ReadDeltas(in, count);
    columns.order = ReadDeltas(in, count);
    columns.step.assign(count, step);
    columns.stats.resize(count);
    std::string flags;
    for (std::size_t i = 0; i < count; ++i) flags.push_back(static_cast<char>(in.U8()));
    for (std::size_t i = 0; i < count; ++i) columns.stats[i].has_finite = (flags[i] & kHasFinite) != 0;
    for (const CountField field : kCounts) {
      for (TensorStats& s : columns.stats) s.*field = in.Varint();
    }
    for (const RealField field : kReals) {
      for (TensorStats& s : columns.stats) {
        if (s.has_finite) s.*field = in.F64();
      }
    }
    for (TensorStats& s : columns.stats) s.hash = in.U64();
    columns.sketch.reserve(count * columns.sketch_width);
    for (std::size_t i = 0; i < count * columns.sketch_width; ++i) {
      const bool wide = (flags[i / columns.sketch_width] & kWideSketch) != 0;
      columns.sketch.push_back(wide ? in.F64() : static_cast<double>(in.F32()));
    }
    ReadSamples(in, count, columns);
  }
  if (!in.done()) {
    return Status(Code::kDataLoss,
                  "read " + std::string(what) +
                      ": the checksum matches but the content does not parse; it was written wrongly; "
                      "remove the run and report this");
  }
  return columns;
}

}  // namespace statcollect
