#include "server/store/codec/catalogue.h"

#include <span>

#include "common/placement.h"
#include "server/store/byte_io.h"
#include "server/store/codec/sealed.h"

namespace statcollect {
namespace {

constexpr std::uint8_t kVersion = 1;
// Of a layout with a placement, which builds before placements refuse by its version.
constexpr std::uint8_t kPlacedVersion = 2;

// Of a hello and a rank of a launch of which only some ranks record. Builds before that refuse it
// by its version.
constexpr std::uint8_t kRanksVersion = 2;

template <typename T>
constexpr std::uint8_t kVersionMax = kVersion;
template <>
constexpr std::uint8_t kVersionMax<SessionInfo> = kRanksVersion;
template <>
constexpr std::uint8_t kVersionMax<RankMeta> = kRanksVersion;
template <>
constexpr std::uint8_t kVersionMax<Layout> = kPlacedVersion;

void Write(ByteWriter& out, const std::map<std::string, std::string>& map) {
  out.Varint(map.size());
  for (const auto& [key, value] : map) {
    out.Text(key);
    out.Text(value);
  }
}

void Read(ByteReader& in, std::map<std::string, std::string>& map) {
  for (std::size_t n = in.Count(2); n > 0; --n) {
    std::string key = in.Text();
    map[std::move(key)] = in.Text();
  }
}

// A value of an enumeration; anything from `count` on fails.
template <typename E>
E ReadEnum(ByteReader& in, int count) {
  const std::uint8_t value = in.U8();
  if (value >= count) in.Fail();
  return in.ok() ? static_cast<E>(value) : E{};
}

bool ReadBool(ByteReader& in) { return ReadEnum<std::uint8_t>(in, 2) == 1; }

void Write(ByteWriter& out, const std::optional<std::uint64_t>& number) {
  out.U8(number ? 1 : 0);
  if (number) out.Varint(*number);
}

void Read(ByteReader& in, std::optional<std::uint64_t>& number) {
  if (ReadBool(in)) number = in.Varint();
}

void Write(ByteWriter& out, const SessionInfo& s) {
  out.Text(s.run);
  for (const std::uint8_t byte : s.session) out.U8(byte);
  out.Text(s.launch);
  out.U8(static_cast<std::uint8_t>(s.if_exists));
  out.Varint(s.rank);
  out.Varint(s.local_rank);
  out.Varint(s.world_size);
  out.Text(s.host);
  out.Signed(s.pid);
  out.Signed(s.start_unix_nanos);
  out.Text(s.agent_version);
  Write(out, s.config);
  if (!s.ranks.empty()) out.Text(s.ranks);
}

void Read(ByteReader& in, SessionInfo& s) {
  s.run = in.Text();
  for (std::uint8_t& byte : s.session) byte = in.U8();
  s.launch = in.Text();
  s.if_exists = ReadEnum<IfExists>(in, kIfExistsCount);
  s.rank = in.Varint32();
  s.local_rank = in.Varint32();
  s.world_size = in.Varint32();
  s.host = in.Text();
  s.pid = in.Signed();
  s.start_unix_nanos = in.Signed();
  s.agent_version = in.Text();
  Read(in, s.config);
  if (!in.done()) s.ranks = in.Text();
}

void Write(ByteWriter& out, const AttemptMeta& a) {
  out.Varint(a.id);
  out.Varint(a.number);
  out.Text(a.run);
  out.Text(a.launch);
  out.Varint(a.world_size);
  out.Signed(a.start_unix_nanos);
}

void Read(ByteReader& in, AttemptMeta& a) {
  a.id = in.Varint32();
  a.number = in.Varint32();
  a.run = in.Text();
  a.launch = in.Text();
  a.world_size = in.Varint32();
  a.start_unix_nanos = in.Signed();
}

void Write(ByteWriter& out, const RankMeta& r) {
  out.Varint(r.durable_seq);
  out.Varint(r.records);
  out.Varint(r.stat_records);
  out.Varint(r.steps);
  Write(out, r.first_step);
  Write(out, r.last_step);
  out.Varint(r.dropped.size());
  for (const auto& [cause, count] : r.dropped) {
    out.Text(cause);
    out.Varint(count);
  }
  out.Signed(r.last_write_unix_nanos);
  out.U8(r.finished ? 1 : 0);
  if (r.ranks_expected > 0) out.Varint(r.ranks_expected);
}

void Read(ByteReader& in, RankMeta& r) {
  r.durable_seq = in.Varint();
  r.records = in.Varint();
  r.stat_records = in.Varint();
  r.steps = in.Varint();
  Read(in, r.first_step);
  Read(in, r.last_step);
  for (std::size_t n = in.Count(2); n > 0; --n) {
    std::string cause = in.Text();
    r.dropped[std::move(cause)] = in.Varint();
  }
  r.last_write_unix_nanos = in.Signed();
  r.finished = ReadBool(in);
  if (!in.done()) r.ranks_expected = in.Varint32();
}

void Write(ByteWriter& out, const TensorDef& d) {
  out.Varint(d.id);
  out.Text(d.key.name);
  out.U8(static_cast<std::uint8_t>(d.key.kind));
  out.Text(d.key.output_path);
  out.Varint(d.key.micro_batch);
  out.Varint(d.key.call);
  out.U8(static_cast<std::uint8_t>(d.key.mode));
  out.Text(d.parent);
  out.Text(d.class_name);
  out.Signed(d.depth);
}

void Read(ByteReader& in, TensorDef& d) {
  d.id = in.Varint32();
  d.key.name = in.Text();
  d.key.kind = ReadEnum<Kind>(in, kKindCount);
  d.key.output_path = in.Text();
  d.key.micro_batch = in.Varint32();
  d.key.call = in.Varint32();
  d.key.mode = ReadEnum<Mode>(in, kModeCount);
  d.parent = in.Text();
  d.class_name = in.Text();
  d.depth = static_cast<std::int32_t>(in.Signed());
}

void Write(ByteWriter& out, const std::vector<std::int64_t>& numbers) {
  out.Varint(numbers.size());
  for (const std::int64_t number : numbers) out.Signed(number);
}

void Read(ByteReader& in, std::vector<std::int64_t>& numbers) {
  numbers.resize(in.Count(1));
  for (std::int64_t& number : numbers) number = in.Signed();
}

void Write(ByteWriter& out, const Placement& p) {
  Write(out, p.global_shape);
  Write(out, p.boxes);
  Write(out, p.ranges);
  out.U8(p.partial ? 1 : 0);
  out.Varint(p.piece);
  out.Varint(p.pieces);
}

// Whoever reads it may rely on what CheckPlacement promises, as when it came over the wire.
void Read(ByteReader& in, std::span<const std::int64_t> shape, Placement& p) {
  Read(in, p.global_shape);
  Read(in, p.boxes);
  Read(in, p.ranges);
  p.partial = ReadBool(in);
  p.piece = in.Varint32();
  p.pieces = in.Varint32();
  if (!in.ok() || !CheckPlacement(shape, View(p)).ok()) in.Fail();
}

// Shorter values are of builds before hash_kind, or before placements.
void Write(ByteWriter& out, const Layout& l) {
  out.Varint(l.id);
  out.U8(static_cast<std::uint8_t>(l.dtype));
  Write(out, l.shape);
  if (l.absent == 0 && l.untrusted == 0 && l.hash_kind == HashKind::kContent2 && !l.placement)
    return;
  out.Varint(l.absent);
  out.Varint(l.untrusted);
  out.U8(static_cast<std::uint8_t>(l.hash_kind));
  if (l.placement) Write(out, *l.placement);
}

void Read(ByteReader& in, Layout& l) {
  l.id = in.Varint32();
  l.dtype = ReadEnum<DType>(in, kDTypeCount);
  Read(in, l.shape);
  l.hash_kind = HashKind::kContent2;
  if (in.done()) return;
  l.absent = in.Varint32();
  l.untrusted = in.Varint32();
  l.hash_kind = ReadEnum<HashKind>(in, kHashKindCount);
  if (!in.done()) Read(in, l.shape, l.placement.emplace());
}

void Write(ByteWriter& out, const ScalarRecord& s) {
  out.Text(s.name);
  out.Varint(s.step);
  out.Varint(s.micro_batch);
  out.F64(s.value);
}

void Read(ByteReader& in, ScalarRecord& s) {
  s.name = in.Text();
  s.step = in.Varint();
  s.micro_batch = in.Varint32();
  s.value = in.F64();
}

void Write(ByteWriter& out, const EventRecord& e) {
  out.Text(e.kind);
  out.Varint(e.step);
  out.Signed(e.unix_nanos);
  out.Text(e.text);
  Write(out, e.fields);
}

void Read(ByteReader& in, EventRecord& e) {
  e.kind = in.Text();
  e.step = in.Varint();
  e.unix_nanos = in.Signed();
  e.text = in.Text();
  Read(in, e.fields);
}

void Write(ByteWriter& out, const MemoryRecord& m) {
  out.Varint(m.step);
  out.Varint(m.micro_batch);
  out.U8(static_cast<std::uint8_t>(m.phase));
  out.Text(m.device);
  out.Text(m.module);
  out.Varint(m.present);
  for (int i = 0; i < kMemoryQuantityCount; ++i) {
    const auto quantity = static_cast<MemoryQuantity>(i);
    if (m.Has(quantity)) out.Signed(m.Of(quantity));
  }
}

void Read(ByteReader& in, MemoryRecord& m) {
  m.step = in.Varint();
  m.micro_batch = in.Varint32();
  m.phase = ReadEnum<MemoryPhase>(in, kMemoryPhaseCount);
  m.device = in.Text();
  m.module = in.Text();
  m.present = in.Varint32();
  if (m.present >> kMemoryQuantityCount != 0) in.Fail();
  for (int i = 0; i < kMemoryQuantityCount; ++i) {
    if (m.Has(static_cast<MemoryQuantity>(i))) m.bytes[static_cast<std::size_t>(i)] = in.Signed();
  }
}

void Write(ByteWriter& out, const DensityRecord& d) {
  out.Varint(d.step);
  out.Varint(d.micro_batch);
  out.Text(d.input);
  out.U8(static_cast<std::uint8_t>(d.type));
  out.Signed(d.pad_index);
  out.Varint(d.valid);
  out.Varint(d.total);
  out.Varint(d.valid_per_sample.size());
  for (const std::uint64_t valid : d.valid_per_sample) out.Varint(valid);
}

void Read(ByteReader& in, DensityRecord& d) {
  d.step = in.Varint();
  d.micro_batch = in.Varint32();
  d.input = in.Text();
  d.type = ReadEnum<DensityType>(in, kDensityTypeCount);
  d.pad_index = in.Signed();
  d.valid = in.Varint();
  d.total = in.Varint();
  d.valid_per_sample.resize(in.Count(1));
  for (std::uint64_t& valid : d.valid_per_sample) valid = in.Varint();
}

void Write(ByteWriter& out, const SettingRecord& s) {
  out.Text(s.name);
  out.Text(s.value);
}

void Read(ByteReader& in, SettingRecord& s) {
  s.name = in.Text();
  s.value = in.Text();
}

void Write(ByteWriter& out, const StepRecord& s) {
  out.Varint(s.step);
  out.Signed(s.unix_nanos);
  out.Varint(s.micro_batches);
}

void Read(ByteReader& in, StepRecord& s) {
  s.step = in.Varint();
  s.unix_nanos = in.Signed();
  s.micro_batches = in.Varint32();
}

void Write(ByteWriter& out, const ExponentRecord& e) {
  out.Varint(e.step);
  out.Varint(e.activation);
  out.Varint(e.layout);
  out.Signed(e.lowest);
  out.Varint(e.counts.size());
  for (const std::uint64_t count : e.counts) out.Varint(count);
}

void Read(ByteReader& in, ExponentRecord& e) {
  e.step = in.Varint();
  e.activation = in.Varint32();
  e.layout = in.Varint32();
  const std::int64_t lowest = in.Signed();
  e.counts.resize(in.Count(1));
  if (lowest < kExponentLowest ||
      lowest + static_cast<std::int64_t>(e.counts.size()) > kExponentHighest + 1)
    in.Fail();
  e.lowest = static_cast<std::int32_t>(lowest);
  for (std::uint64_t& count : e.counts) count = in.Varint();
}

void Write(ByteWriter& out, const CaptureHead& c) {
  out.Varint(c.layout);
  out.Varint(c.elements);
  out.Varint(c.bytes);
}

void Read(ByteReader& in, CaptureHead& c) {
  c.layout = in.Varint32();
  c.elements = in.Varint();
  c.bytes = in.Varint32();
}

template <typename T>
std::string EncodeSealed(const T& value, std::uint8_t version = kVersion) {
  ByteWriter out;
  Write(out, value);
  return Seal(version, out.bytes());
}

}  // namespace

std::string Encode(const AttemptMeta& attempt) { return EncodeSealed(attempt); }
std::string Encode(const SessionInfo& info) {
  return EncodeSealed(info, info.ranks.empty() ? kVersion : kRanksVersion);
}
std::string Encode(const RankMeta& rank) {
  return EncodeSealed(rank, rank.ranks_expected == 0 ? kVersion : kRanksVersion);
}
std::string Encode(const TensorDef& def) { return EncodeSealed(def); }
std::string Encode(const Layout& layout) {
  return EncodeSealed(layout, layout.placement ? kPlacedVersion : kVersion);
}
std::string Encode(const ScalarRecord& scalar) { return EncodeSealed(scalar); }
std::string Encode(const EventRecord& event) { return EncodeSealed(event); }
std::string Encode(const MemoryRecord& memory) { return EncodeSealed(memory); }
std::string Encode(const DensityRecord& density) { return EncodeSealed(density); }
std::string Encode(const SettingRecord& setting) { return EncodeSealed(setting); }
std::string Encode(const StepRecord& step) { return EncodeSealed(step); }
std::string Encode(const ExponentRecord& exponents) { return EncodeSealed(exponents); }
std::string Encode(const CaptureHead& head) { return EncodeSealed(head); }

template <typename T>
Result<T> Decode(std::string_view what, std::string_view bytes) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto payload, Unseal(what, bytes, kVersionMax<T>));
  ByteReader in(payload);
  T value;
  Read(in, value);
  if (!in.done()) {
    return Status(Code::kDataLoss, "read " + std::string(what) +
                                       ": the checksum matches but the content does not parse, so "
                                       "it was written wrongly; remove the "
                                       "run and report this");
  }
  return value;
}

template Result<AttemptMeta> Decode<AttemptMeta>(std::string_view, std::string_view);
template Result<SessionInfo> Decode<SessionInfo>(std::string_view, std::string_view);
template Result<RankMeta> Decode<RankMeta>(std::string_view, std::string_view);
template Result<TensorDef> Decode<TensorDef>(std::string_view, std::string_view);
template Result<Layout> Decode<Layout>(std::string_view, std::string_view);
template Result<ScalarRecord> Decode<ScalarRecord>(std::string_view, std::string_view);
template Result<EventRecord> Decode<EventRecord>(std::string_view, std::string_view);
template Result<MemoryRecord> Decode<MemoryRecord>(std::string_view, std::string_view);
template Result<DensityRecord> Decode<DensityRecord>(std::string_view, std::string_view);
template Result<SettingRecord> Decode<SettingRecord>(std::string_view, std::string_view);
template Result<StepRecord> Decode<StepRecord>(std::string_view, std::string_view);
template Result<ExponentRecord> Decode<ExponentRecord>(std::string_view, std::string_view);
template Result<CaptureHead> Decode<CaptureHead>(std::string_view, std::string_view);

}  // namespace statcollect
