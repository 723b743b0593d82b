#include "server/transfer/rank_digest.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "server/store/byte_io.h"
#include "server/store/codec/catalogue.h"
#include "server/store/codec/record_kinds.h"

namespace statcollect::transfer {
namespace {

// Adds up the digests of records of one sort, step by step.
class Adder {
 public:
  Adder(std::string what, const std::function<Status(const StepDigest&)>& take)
      : what_(std::move(what)), take_(take) {}

  // A sum, so that it does not matter in which blocks the records of a step come. `bytes` has what
  // tells them apart.
  Status Add(std::uint64_t step, std::string_view bytes) {
    if (now_ && now_->step != step) STATCOLLECT_RETURN_IF_ERROR(Flush());
    if (!now_) now_ = StepDigest{.what = what_, .step = step};
    const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
    ++now_->records;
    now_->low += hash.low64;
    now_->high += hash.high64;
    return Status::Ok();
  }
  // The same where the order within the step matters.
  Status AddNext(std::uint64_t step, std::string_view bytes) {
    ByteWriter numbered;
    numbered.U64(now_ && now_->step == step ? now_->records : 0);
    numbered.Raw(bytes);
    return Add(step, numbered.bytes());
  }
  Status Flush() {
    if (!now_) return Status::Ok();
    return take_(*std::exchange(now_, std::nullopt));
  }

 private:
  const std::string what_;
  const std::function<Status(const StepDigest&)>& take_;
  std::optional<StepDigest> now_;
};

class RankDigester {
 public:
  RankDigester(RecordReader& store, AttemptId attempt, std::uint32_t rank,
               const std::function<Status(const StepDigest&)>& take, const std::stop_token& stop)
      : store_(store), attempt_(attempt), rank_(rank), take_(take), stop_(stop) {}

  Status Run();

 private:
  template <typename Def>
  Status DigestDefinitions(const char* what, const std::vector<Def>& definitions);
  // Digests all stored records of one kind. The argument is empty: only its type matters.
  Status Digest(const StatColumns&);
  Status Digest(const std::vector<CaptureChunk>&);
  Status Digest(const std::vector<SettingRecord>&) { return Status::Ok(); }  // not copied as such
  template <typename Record>
  Status Digest(const std::vector<Record>&);
  Result<std::string> BytesOf(const StoredCapture& capture);
  Status Stopped() const {
    return stop_.stop_requested() ? Status(Code::kCancelled, "copy: cancelled") : Status::Ok();
  }

  RecordReader& store_;
  const AttemptId attempt_;
  const std::uint32_t rank_;
  const std::function<Status(const StepDigest&)>& take_;
  const std::stop_token& stop_;
};

Status RankDigester::Run() {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto defined, store_.Definitions(attempt_, rank_));
  STATCOLLECT_RETURN_IF_ERROR(DigestDefinitions("activations", defined->activations));
  STATCOLLECT_RETURN_IF_ERROR(DigestDefinitions("layouts", defined->layouts));
  const RecordBatch kinds;
  Status status;
  ForEachKind(kinds, [&](const auto& kind) {
    if (status.ok()) status = Digest(kind);
  });
  return status;
}

template <typename Def>
Status RankDigester::DigestDefinitions(const char* what, const std::vector<Def>& definitions) {
  Adder adder(what, take_);
  for (const Def& def : definitions) STATCOLLECT_RETURN_IF_ERROR(adder.Add(0, Encode(def)));
  return adder.Flush();
}

Status RankDigester::Digest(const StatColumns&) {
  Adder adder("stats", take_);
  const auto scan = store_.ScanStats(attempt_, rank_, StepBounds());
  StatColumns block;
  while (scan->NextHead()) {
    STATCOLLECT_RETURN_IF_ERROR(Stopped());
    if (!scan->Load(/*sketches=*/true, &block)) return scan->status();
    std::size_t sample = 0;
    for (std::size_t i = 0; i < block.size(); ++i) {
      const TensorStats& s = block.stats[i];
      const std::size_t samples = i < block.sample_count.size() ? block.sample_count[i] : 0;
      ByteWriter out;
      for (const std::uint32_t number : {block.activation[i], block.layout[i], block.order[i]})
        out.U32(number);
      for (const std::uint64_t count :
           {s.numel, s.nan, s.pos_inf, s.neg_inf, s.zero, s.neg, s.pos, s.hash})
        out.U64(count);
      out.U8(s.has_finite ? 1 : 0);
      for (const double value : {s.min, s.max, s.mean, s.std, s.l1, s.l2}) out.F64(value);
      out.U32(block.sketch_width);
      out.Array(block.SketchOf(i));
      out.Array(std::span<const double>(block.samples).subspan(sample, samples));
      sample += samples;
      STATCOLLECT_RETURN_IF_ERROR(adder.Add(block.step[i], out.bytes()));
    }
  }
  STATCOLLECT_RETURN_IF_ERROR(scan->status());
  return adder.Flush();
}

template <typename Record>
Status RankDigester::Digest(const std::vector<Record>&) {
  Adder adder(kKindOf<Record>.name, take_);
  Visitor<Record> visitor;
  visitor.take = [&](const Record& record) {
    STATCOLLECT_RETURN_IF_ERROR(Stopped());
    std::string bytes = Encode(record);
    if constexpr (std::is_same_v<Record, EventRecord>) bytes += record.from_collector ? '\1' : '\0';
    return adder.AddNext(record.step, bytes);
  };
  STATCOLLECT_RETURN_IF_ERROR(store_.Visit(attempt_, rank_, StepBounds(), visitor));
  return adder.Flush();
}

Status RankDigester::Digest(const std::vector<CaptureChunk>&) {
  std::vector<StoredCapture> all;
  Visitor<StoredCapture> visitor;
  visitor.take = [&](const StoredCapture& capture) {
    // Of one that lacks its beginning nothing can be copied.
    if (capture.bytes_stored > 0 || capture.elements == 0) all.push_back(capture);
    return Stopped();
  };
  STATCOLLECT_RETURN_IF_ERROR(store_.Visit(attempt_, rank_, StepBounds(), visitor));
  Adder adder("captures", take_);
  for (const StoredCapture& capture : all) {
    STATCOLLECT_RETURN_IF_ERROR(Stopped());
    STATCOLLECT_ASSIGN_OR_RETURN(const auto bytes, BytesOf(capture));
    STATCOLLECT_RETURN_IF_ERROR(adder.AddNext(capture.step, bytes));
  }
  return adder.Flush();
}

Result<std::string> RankDigester::BytesOf(const StoredCapture& capture) {
  ByteWriter out;
  out.U32(capture.activation);
  out.U32(capture.layout);
  out.U64(capture.elements);
  out.U64(capture.bytes_stored);
  for (std::uint64_t offset = 0; offset < capture.bytes_stored;) {
    STATCOLLECT_ASSIGN_OR_RETURN(
        const auto data, store_.CaptureChunkAt(attempt_, rank_, capture.step, capture.activation,
                                               static_cast<std::uint32_t>(offset)));
    if (data.empty()) break;
    out.U64(XXH3_64bits(data.data(), data.size()));
    offset += data.size();
  }
  return out.Take();
}

}  // namespace

Status DigestRank(RecordReader& store, AttemptId attempt, std::uint32_t rank,
                  const std::function<Status(const StepDigest&)>& take,
                  const std::stop_token& stop) {
  return RankDigester(store, attempt, rank, take, stop).Run();
}

}  // namespace statcollect::transfer
