// Whether the copy of a run holds what its original does.
#include <functional>
#include <map>
#include <string>
#include <tuple>

#include <fmt/format.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include "client/imports/run_copier.h"
#include "common/checksum.h"
#include "common/names.h"

namespace statcollect::client {
namespace {

constexpr std::size_t kDifferencesMax = 10;

// What a part is about, and a digest of all of it.
using PartDigests = std::map<std::string, std::pair<std::size_t, std::uint32_t>>;

// Maps in their order of keys, so that equal parts have equal bytes.
std::string DeterministicBytes(const v1::RunPart& part) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  {
    google::protobuf::io::CodedOutputStream out(&stream);
    out.SetSerializationDeterministic(true);
    part.SerializeToCodedStream(&out);
  }
  return bytes;
}

std::string PartName(const v1::RunPart& part) {
  switch (part.part_case()) {
    case v1::RunPart::kAttempt:
      return fmt::format("launch {}", part.attempt().attempt());
    case v1::RunPart::kDocument:
      return fmt::format("document {} from byte {}", Printable(part.document().name()),
                         part.document().offset());
    case v1::RunPart::kEvent:
      return fmt::format("event {} of the collector about rank {} of launch {}",
                         part.event().number(), part.event().rank(), part.event().attempt());
    case v1::RunPart::kRank:
      return fmt::format("state of rank {} of launch {}", part.rank().hello().rank(),
                         part.rank().attempt());
    default:
      return "exemption from retention";
  }
}

Result<PartDigests> PartsOf(Collector& collector, const std::string& run) {
  v1::DescribeRunRequest request;
  request.set_run(run);
  PartDigests parts;
  const Status described = collector.DescribeRun(request, [&](v1::RunPart& part) {
    // How far alarms have judged the run is written when there is time, and again by the target.
    if (part.has_document() && part.document().name() == "alarms") return Status::Ok();
    if (part.has_head()) part.mutable_head()->clear_streams_open();
    const std::string bytes = DeterministicBytes(part);
    parts[PartName(part)] = {std::hash<std::string>()(bytes), Crc32c(bytes)};
    return Status::Ok();
  });
  if (!described.ok()) return described;
  return parts;
}

struct RankDigest {
  std::uint64_t records = 0, low = 0, high = 0;
  bool operator==(const RankDigest&) const = default;
};
using RankDigests = std::map<std::pair<std::string, std::uint64_t>, RankDigest>;

Result<RankDigests> DigestsOf(Collector& collector, const v1::DigestRankRequest& request) {
  RankDigests digests;
  const Status read = collector.DigestRank(request, [&](const v1::DigestRankResponse& message) {
    for (const v1::StepDigest& digest : message.digests())
      digests[{digest.what(), digest.step()}] = {
          .records = digest.records(), .low = digest.low(), .high = digest.high()};
    return Status::Ok();
  });
  if (!read.ok()) return read;
  return digests;
}

// Calls `differ` for what only one side has, and for what both have and is not the same.
template <typename Map, typename Differ>
void ForDifferences(const Map& source, const Map& target, const Differ& differ) {
  for (const auto& [key, value] : source) {
    const auto other = target.find(key);
    if (other == target.end() || other->second != value)
      differ(key, &value, other == target.end() ? nullptr : &other->second);
  }
  for (const auto& [key, value] : target) {
    if (!source.contains(key)) differ(key, static_cast<decltype(&value)>(nullptr), &value);
  }
}

void NoteDifference(CopyCheck* found, std::string sentence) {
  if (found->differences.size() < kDifferencesMax)
    found->differences.push_back(std::move(sentence));
}

}  // namespace

Result<CopyCheck> RunCopier::Compare(const std::string& run, const RunOutline& outline) {
  CopyCheck found;
  STATCOLLECT_RETURN_IF_ERROR(Persist([&] {
    found.differences.clear();
    return CompareParts(run, &found);
  }));
  for (const auto& [place, rank] : outline.ranks) {
    STATCOLLECT_RETURN_IF_ERROR(
        Persist([&, at = place] { return CompareRank(run, at.first, at.second, &found); }));
    progress_(found.records);
  }
  return found;
}

Status RunCopier::CompareParts(const std::string& run, CopyCheck* found) {
  const auto source = PartsOf(source_, run);
  if (!source.ok()) return source.status();
  const auto target = PartsOf(target_, run);
  if (!target.ok()) return target.status();
  ForDifferences(*source, *target,
                 [&](const std::string& name, const auto* here, const auto* there) {
                   NoteDifference(found, fmt::format("{}: {}", name,
                                                     here == nullptr    ? "only the target has it"
                                                     : there == nullptr ? "the target lacks it"
                                                                        : "differs"));
                 });
  return Status::Ok();
}

Status RunCopier::CompareRank(const std::string& run, std::uint32_t attempt, std::uint32_t rank,
                              CopyCheck* found) {
  v1::DigestRankRequest request;
  request.set_run(run);
  request.set_attempt(attempt);
  request.set_rank(rank);
  const auto source = DigestsOf(source_, request);
  if (!source.ok()) return source.status();
  const auto target = DigestsOf(target_, request);
  if (!target.ok()) return target.status();
  ForDifferences(
      *source, *target, [&](const auto& key, const RankDigest* here, const RankDigest* there) {
        const auto& [what, step] = key;
        NoteDifference(
            found,
            fmt::format(
                "{} of step {}, rank {}, launch {}: the source has {} records, the target {}{}",
                what, step, rank, attempt, here == nullptr ? 0 : here->records,
                there == nullptr ? 0 : there->records,
                here != nullptr && there != nullptr && here->records == there->records
                    ? " with other content"
                    : ""));
      });
  for (const auto& [key, digest] : *source) {
    if (key.first != "activations" && key.first != "layouts") found->records += digest.records;
  }
  return Status::Ok();
}

}  // namespace statcollect::client
