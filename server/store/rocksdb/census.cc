#include "server/store/rocksdb/census.h"

#include <map>
#include <set>
#include <string>
#include <utility>

#include "server/store/rocksdb/catalogue_keys.h"
#include "server/store/rocksdb/values.h"
#include "server/store/tally.h"

namespace statcollect {
namespace {

Result<std::set<std::string>> KeptRuns(const Database& database) {
  std::set<std::string> kept;
  const KeyRange range("k", "l");
  auto it = Iterate(*database.db, database.families[kCatalogue], range);
  for (; it->Valid(); it->Next()) kept.emplace(View(it->key()).substr(1));
  STATCOLLECT_RETURN_IF_ERROR(FromRocks("read which runs are kept", it->status()));
  return kept;
}

Status AddSizes(const Database& database, std::vector<AttemptTally>* tallies) {
  std::vector<AttemptId> ids;
  for (const AttemptTally& tally : *tallies) ids.push_back(tally.meta.id);
  for (const Family family : kOfAttempts) {
    STATCOLLECT_ASSIGN_OR_RETURN(auto sizes, SizesOf(database, family, ids, /*memtables=*/true));
    for (std::size_t i = 0; i < ids.size(); ++i) (*tallies)[i].bytes += sizes[i];
  }
  return Status::Ok();
}

}  // namespace

Result<std::vector<AttemptTally>> TakeCensus(const Database& database) {
  STATCOLLECT_ASSIGN_OR_RETURN(
      auto attempts, ReadValues<AttemptMeta>(database, "attempts", kCatalogue, AllAttempts()));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto kept, KeptRuns(database));
  std::vector<AttemptTally> tallies;
  std::map<AttemptId, std::size_t> places;
  for (AttemptMeta& attempt : attempts) {
    places[attempt.id] = tallies.size();
    tallies.push_back(EmptyTally(std::move(attempt)));
    tallies.back().kept = kept.contains(tallies.back().meta.run);
  }
  STATCOLLECT_RETURN_IF_ERROR(
      ForEachValue<RankMeta>(database, "ranks", kCatalogue, KeyRange("m", "n"),
                             [&](std::string_view key, const RankMeta& rank) {
                               const auto place = places.find(ReadU32(key.substr(1)));
                               if (place != places.end()) AddRank(rank, &tallies[place->second]);
                             }));
  for (AttemptTally& tally : tallies) FinishTally(&tally);
  STATCOLLECT_RETURN_IF_ERROR(AddSizes(database, &tallies));
  return tallies;
}

Result<std::vector<std::uint64_t>> SizesOf(const Database& database, Family family,
                                           std::span<const AttemptId> attempts, bool memtables) {
  std::vector<std::string> bounds;
  bounds.reserve(2 * attempts.size());
  for (const AttemptId id : attempts) {
    bounds.push_back(KeyBuilder().U32(id).Take());
    bounds.push_back(PrefixEnd(bounds.back()));
  }
  std::vector<rocksdb::Range> ranges;
  for (std::size_t i = 0; i < attempts.size(); ++i)
    ranges.emplace_back(bounds[2 * i], bounds[2 * i + 1]);
  std::vector<std::uint64_t> sizes(ranges.size());
  rocksdb::SizeApproximationOptions options;
  options.include_memtables = memtables;
  STATCOLLECT_RETURN_IF_ERROR(
      FromRocks("measure attempts",
                database.db->GetApproximateSizes(options, database.families[family], ranges.data(),
                                                 static_cast<int>(ranges.size()), sizes.data())));
  return sizes;
}

}  // namespace statcollect
