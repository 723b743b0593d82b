#include "server/store/codec/catalogue.h"

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/placement.h"
#include "server/store/attempt.h"
#include "server/store/byte_io.h"
#include "server/store/codec/sealed.h"

namespace statcollect {
namespace {

constexpr std::uint8_t kVersion = 1;
// Of a layout with a placement, which builds before placements refuse by its version.
constexpr std::uint8_t kPlacedVersion = 2;
// Of one with an unordered dimension, likewise.
constexpr std::uint8_t kUnorderedVersion = 3;

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
constexpr std::uint8_t kVersionMax<Layout> = kUnorderedVersion;

// One past the greatest value of an enumeration that is stored.
constexpr int CountOf(IfExists) { return kIfExistsCount; }
constexpr int CountOf(Kind) { return kKindCount; }
constexpr int CountOf(Mode) { return kModeCount; }
constexpr int CountOf(DType) { return kDTypeCount; }
constexpr int CountOf(HashKind) { return kHashKindCount; }
constexpr int CountOf(MemoryPhase) { return kMemoryPhaseCount; }
constexpr int CountOf(DensityType) { return kDensityTypeCount; }

constexpr std::size_t kTokenRowBytesMin = 8 + 1 + 4 + 8 + 4 * kRowSketch;

// A format is described once, by Fields(io, value), which names the fields in their order. With a
// Writing it writes the value, with a Reading it reads one.
class Writing {
 public:
  template <typename T>
  using Ref = const T&;
  static constexpr bool kReads = false;

  explicit Writing(ByteWriter& out) : out_(out) {}

  template <typename... Fields>
  void operator()(const Fields&... fields) {
    (Field(fields), ...);
  }
  // Whether the value goes on, which Reading tells by its length.
  bool More(bool wanted) const { return wanted; }
  void Expect(bool /*valid*/) const {}

 private:
  template <typename T>
  void Field(const T& value) {
    if constexpr (std::is_enum_v<T> || sizeof(T) == 1) {
      out_.U8(static_cast<std::uint8_t>(value));
    } else if constexpr (std::is_floating_point_v<T>) {
      out_.F64(value);
    } else if constexpr (std::is_signed_v<T>) {
      out_.Signed(value);
    } else {
      out_.Varint(value);
    }
  }
  void Field(const std::string& text) { out_.Text(text); }
  void Field(const SessionId& id) {
    for (const std::uint8_t byte : id) out_.U8(byte);
  }
  void Field(const std::vector<TokenRow>& rows) {
    out_.Reserve(out_.bytes().size() + rows.size() * (kTokenRowBytesMin + 4));
    out_.Varint(rows.size());
    for (const TokenRow& row : rows) {
      out_.U64(row.key);
      out_.Varint(row.position);
      out_.F32(row.stats.l2);
      out_.U64(row.stats.hash);
      out_.Array(std::span<const float>(row.stats.sketch));
    }
  }
  void Field(const std::optional<std::uint64_t>& number) {
    Field(number.has_value());
    if (number) Field(*number);
  }
  template <typename T>
  void Field(const std::vector<T>& values) {
    out_.Varint(values.size());
    for (const T value : values) Field(value);
  }
  template <typename T>
  void Field(const std::map<std::string, T>& map) {
    out_.Varint(map.size());
    for (const auto& [key, value] : map) (*this)(key, value);
  }

  ByteWriter& out_;
};

class Reading {
 public:
  template <typename T>
  using Ref = T&;
  static constexpr bool kReads = true;

  explicit Reading(ByteReader& in) : in_(in) {}

  template <typename... Fields>
  void operator()(Fields&... fields) {
    (Field(fields), ...);
  }
  bool More(bool /*wanted*/) const { return !in_.done(); }
  void Expect(bool valid) {
    if (!valid) in_.Fail();
  }
  bool ok() const { return in_.ok(); }

 private:
  template <typename T>
  void Field(T& value) {
    if constexpr (std::is_enum_v<T>) {
      value = Below<T>(CountOf(T{}));
    } else if constexpr (std::is_same_v<T, bool>) {
      value = Below<std::uint8_t>(2) == 1;
    } else if constexpr (std::is_floating_point_v<T>) {
      value = in_.F64();
    } else {
      const auto stored = Number<std::is_signed_v<T>>();
      Expect(std::in_range<T>(stored));
      value = in_.ok() ? static_cast<T>(stored) : T{};
    }
  }
  void Field(std::string& text) { text = in_.Text(); }
  void Field(SessionId& id) {
    for (std::uint8_t& byte : id) byte = in_.U8();
  }
  void Field(std::vector<TokenRow>& rows) {
    rows.resize(in_.Count(kTokenRowBytesMin));
    for (TokenRow& row : rows) {
      row.key = in_.U64();
      row.position = in_.Varint32();
      row.stats.l2 = in_.F32();
      row.stats.hash = in_.U64();
      for (float& sum : row.stats.sketch) sum = in_.F32();
    }
  }
  void Field(std::optional<std::uint64_t>& number) {
    bool known = false;
    Field(known);
    if (known) Field(number.emplace());
  }
  template <typename T>
  void Field(std::vector<T>& values) {
    values.resize(in_.Count(1));
    for (T& value : values) Field(value);
  }
  template <typename T>
  void Field(std::map<std::string, T>& map) {
    for (std::size_t n = in_.Count(2); n > 0; --n) {
      std::string key = in_.Text();
      Field(map[std::move(key)]);
    }
  }
  // Anything from `count` on fails.
  template <typename T>
  T Below(int count) {
    const std::uint8_t value = in_.U8();
    Expect(value < count);
    return in_.ok() ? static_cast<T>(value) : T{};
  }
  template <bool kSigned>
  auto Number() {
    if constexpr (kSigned) {
      return in_.Signed();
    } else {
      return in_.Varint();
    }
  }

  ByteReader& in_;
};

template <typename Io, typename T>
using Ref = typename Io::template Ref<T>;

template <typename Io>
void Fields(Io& io, Ref<Io, SessionInfo> s) {
  io(s.run, s.session, s.launch, s.if_exists, s.rank, s.local_rank, s.world_size, s.host, s.pid,
     s.start_unix_nanos, s.agent_version, s.config);
  if (io.More(!s.ranks.empty())) io(s.ranks);
}

template <typename Io>
void Fields(Io& io, Ref<Io, AttemptMeta> a) {
  io(a.id, a.number, a.run, a.launch, a.world_size, a.start_unix_nanos);
}

template <typename Io>
void Fields(Io& io, Ref<Io, RankMeta> r) {
  io(r.durable_seq, r.records, r.stat_records, r.steps, r.first_step, r.last_step, r.dropped,
     r.last_write_unix_nanos, r.finished);
  if (io.More(r.ranks_expected > 0)) io(r.ranks_expected);
}

template <typename Io>
void Fields(Io& io, Ref<Io, TensorDef> d) {
  io(d.id, d.key.name, d.key.kind, d.key.output_path, d.key.micro_batch, d.key.call, d.key.mode,
     d.parent, d.class_name, d.depth);
}

// Shorter values are of builds before hash_kind, or before placements. Whoever reads a placement
// may rely on what CheckPlacement promises, as when it came over the wire.
template <typename Io>
void Fields(Io& io, Ref<Io, Layout> l) {
  io(l.id, l.dtype, l.shape);
  if constexpr (Io::kReads) l.hash_kind = HashKind::kContent2;
  if (!io.More(l.absent != 0 || l.untrusted != 0 || l.hash_kind != HashKind::kContent2 ||
               l.placement))
    return;
  io(l.absent, l.untrusted, l.hash_kind);
  if (!io.More(l.placement.has_value())) return;
  if constexpr (Io::kReads) l.placement.emplace();
  auto& p = *l.placement;
  io(p.global_shape, p.boxes, p.ranges, p.partial, p.piece, p.pieces);
  if (io.More(p.unordered != 0)) io(p.unordered);
  if constexpr (Io::kReads) io.Expect(io.ok() && CheckPlacement(l.shape, View(p)).ok());
}

template <typename Io>
void Fields(Io& io, Ref<Io, ScalarRecord> s) {
  io(s.name, s.step, s.micro_batch, s.value);
}

template <typename Io>
void Fields(Io& io, Ref<Io, EventRecord> e) {
  io(e.kind, e.step, e.unix_nanos, e.text, e.fields);
}

template <typename Io>
void Fields(Io& io, Ref<Io, MemoryRecord> m) {
  io(m.step, m.micro_batch, m.phase, m.device, m.module, m.present);
  io.Expect(m.present >> kMemoryQuantityCount == 0);
  for (int i = 0; i < kMemoryQuantityCount; ++i) {
    if (m.Has(static_cast<MemoryQuantity>(i))) io(m.bytes[static_cast<std::size_t>(i)]);
  }
}

template <typename Io>
void Fields(Io& io, Ref<Io, DensityRecord> d) {
  io(d.step, d.micro_batch, d.input, d.type, d.pad_index, d.valid, d.total, d.valid_per_sample);
}

template <typename Io>
void Fields(Io& io, Ref<Io, SettingRecord> s) {
  io(s.name, s.value);
}

template <typename Io>
void Fields(Io& io, Ref<Io, StepRecord> s) {
  io(s.step, s.unix_nanos, s.micro_batches);
}

template <typename Io>
void Fields(Io& io, Ref<Io, ExponentRecord> e) {
  io(e.step, e.activation, e.layout, e.lowest, e.counts);
  io.Expect(e.lowest >= kExponentLowest &&
            e.lowest + static_cast<std::int64_t>(e.counts.size()) <= kExponentHighest + 1);
}

template <typename Io>
void Fields(Io& io, Ref<Io, TokenRecord> t) {
  io(t.step, t.tap, t.call, t.dtype, t.columns, t.first_column, t.rows);
  io.Expect(t.rows.size() <= kTokenRowsMax);
}

template <typename Io>
void Fields(Io& io, Ref<Io, CaptureHead> c) {
  io(c.layout, c.elements, c.bytes);
}

// The version to write, so that older builds read what they know.
constexpr std::uint8_t VersionFor(const auto& /*value*/) { return kVersion; }
std::uint8_t VersionFor(const SessionInfo& info) {
  return info.ranks.empty() ? kVersion : kRanksVersion;
}
std::uint8_t VersionFor(const RankMeta& rank) {
  return rank.ranks_expected == 0 ? kVersion : kRanksVersion;
}
std::uint8_t VersionFor(const Layout& layout) {
  if (!layout.placement) return kVersion;
  return layout.placement->unordered == 0 ? kPlacedVersion : kUnorderedVersion;
}

}  // namespace

template <typename T>
std::string Encode(const T& value) {
  ByteWriter out;
  Writing writing(out);
  Fields<Writing>(writing, value);
  return Seal(VersionFor(value), out.bytes());
}

template <typename T>
Result<T> Decode(std::string_view what, std::string_view bytes) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto payload, Unseal(what, bytes, kVersionMax<T>));
  ByteReader in(payload);
  T value;
  Reading reading(in);
  Fields<Reading>(reading, value);
  if (!in.done()) {
    return Status(Code::kDataLoss, "read " + std::string(what) +
                                       ": the checksum matches but the content does not parse, so "
                                       "it was written wrongly; remove the run and report this");
  }
  return value;
}

#define STATCOLLECT_STORED(T)            \
  template std::string Encode(const T&); \
  template Result<T> Decode<T>(std::string_view, std::string_view)
STATCOLLECT_STORED(AttemptMeta);
STATCOLLECT_STORED(SessionInfo);
STATCOLLECT_STORED(RankMeta);
STATCOLLECT_STORED(TensorDef);
STATCOLLECT_STORED(Layout);
STATCOLLECT_STORED(ScalarRecord);
STATCOLLECT_STORED(EventRecord);
STATCOLLECT_STORED(MemoryRecord);
STATCOLLECT_STORED(DensityRecord);
STATCOLLECT_STORED(SettingRecord);
STATCOLLECT_STORED(StepRecord);
STATCOLLECT_STORED(ExponentRecord);
STATCOLLECT_STORED(TokenRecord);
STATCOLLECT_STORED(CaptureHead);
#undef STATCOLLECT_STORED

}  // namespace statcollect
