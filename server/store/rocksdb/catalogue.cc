#include "server/store/rocksdb/catalogue.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "common/endian.h"
#include "common/parse.h"
#include "server/store/codec/sealed.h"
#include "server/store/rocksdb/catalogue_keys.h"
#include "server/store/rocksdb/census.h"
#include "server/store/rocksdb/families.h"
#include "server/store/rocksdb/values.h"

namespace statcollect {
namespace {

constexpr std::size_t kIdInKey = kRankInKey + sizeof(std::uint32_t);
constexpr char kNextAttemptKey[] = "next_attempt";
constexpr std::uint8_t kKeptVersion = 1;
constexpr std::uint8_t kDocumentVersion = 1;

Result<AttemptId> NextAttemptId(const Database& database) {
  STATCOLLECT_ASSIGN_OR_RETURN(
      const auto text, ReadBytes(database, "the next attempt's number", kDefault, kNextAttemptKey));
  if (!text) return AttemptId{1};
  const auto id = ParseNumber<AttemptId>(*text);
  if (!id || *id == 0) {
    return Status(Code::kDataLoss,
                  "read the next attempt's number: it is not a number; restore a checkpoint");
  }
  return *id;
}

Result<std::vector<AttemptMeta>> AttemptsOf(const Database& database, const std::string& run) {
  return ReadValues<AttemptMeta>(database, "attempts of run '" + run + "'", kCatalogue,
                                 PrefixRange(AttemptPrefix(run)));
}

// One more than the highest id: they are numbered without gaps.
Result<std::size_t> CountDefinitions(const Database& database, char prefix, AttemptId attempt,
                                     std::uint32_t rank) {
  const KeyRange range = PrefixRange(RankKey(prefix, attempt, rank));
  rocksdb::ReadOptions options;
  options.iterate_upper_bound = &range.end_slice;
  const std::unique_ptr<rocksdb::Iterator> it(
      database.db->NewIterator(options, database.families[kCatalogue]));
  it->SeekToLast();
  STATCOLLECT_RETURN_IF_ERROR(FromRocks("count definitions" + OfRank(attempt, rank), it->status()));
  if (!it->Valid() || it->key().compare(range.begin) < 0) return std::size_t{0};
  const std::string_view key = View(it->key());
  return key.size() == kIdInKey + sizeof(std::uint32_t)
             ? std::size_t{ReadU32(key.substr(kIdInKey))} + 1
             : 0;
}

// Appends the stored values, each after its length. Returns how many there are.
Result<std::size_t> AppendStored(const Database& database, char prefix, AttemptId attempt,
                                 std::uint32_t rank, std::string* stored) {
  const KeyRange range = PrefixRange(RankKey(prefix, attempt, rank));
  const auto it = Iterate(*database.db, database.families[kCatalogue], range);
  std::size_t count = 0;
  for (; it->Valid(); it->Next(), ++count) {
    AppendLittleEndian(stored, static_cast<std::uint32_t>(it->value().size()));
    stored->append(it->value().data(), it->value().size());
  }
  AppendLittleEndian(stored, std::uint32_t{0});
  STATCOLLECT_RETURN_IF_ERROR(FromRocks("read definitions" + OfRank(attempt, rank), it->status()));
  return count;
}

// By calls of of_kind(prefix).
template <typename OfKind>
Result<DefinitionCounts> CountEach(const OfKind& of_kind) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto activations, of_kind('a'));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto layouts, of_kind('l'));
  return DefinitionCounts{.activations = activations, .layouts = layouts};
}

}  // namespace

Result<std::vector<std::string>> Catalogue::ListRuns() {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto database, database_.Pin());
  STATCOLLECT_ASSIGN_OR_RETURN(
      auto attempts, ReadValues<AttemptMeta>(*database, "attempts", kCatalogue, AllAttempts()));
  std::vector<std::string> runs;
  for (const AttemptMeta& attempt : attempts) {
    if (runs.empty() || runs.back() != attempt.run) runs.push_back(attempt.run);
  }
  return runs;
}

Result<std::vector<AttemptMeta>> Catalogue::Attempts(const std::string& run) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto database, database_.Pin());
  return AttemptsOf(*database, run);
}

Result<AttemptMeta> Catalogue::CreateAttempt(const AttemptMeta& wanted) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto database, database_.Pin());
  STATCOLLECT_ASSIGN_OR_RETURN(auto existing, AttemptsOf(*database, wanted.run));
  STATCOLLECT_ASSIGN_OR_RETURN(auto next, NextAttemptId(*database));
  AttemptMeta attempt = wanted;
  attempt.id = next;
  attempt.number = std::max(wanted.number, existing.empty() ? 1 : existing.back().number + 1);
  rocksdb::WriteBatch batch;
  (void)batch.Put(database->families[kDefault], kNextAttemptKey, std::to_string(attempt.id + 1));
  (void)batch.Put(database->families[kCatalogue], AttemptKey(attempt), Encode(attempt));
  STATCOLLECT_RETURN_IF_ERROR(
      database_.Write("create attempt of run '" + wanted.run + "'", *database, batch, true));
  live_.Add(attempt.id, attempt.run);
  return attempt;
}

Status Catalogue::CheckRun(const std::string& attempted, const std::string& run) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto attempts, Attempts(run));
  if (!attempts.empty()) return Status::Ok();
  return {Code::kNotFound, attempted + ": there is no such run; statctl runs lists them"};
}

Status Catalogue::KeepRun(const std::string& run, bool keep) {
  const std::string attempted = "keep run '" + run + "'";
  STATCOLLECT_RETURN_IF_ERROR(CheckRun(attempted, run));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto database, database_.Pin());
  rocksdb::WriteBatch batch;
  if (keep) {
    (void)batch.Put(database->families[kCatalogue], KeptKey(run), Seal(kKeptVersion, ""));
  } else {
    (void)batch.Delete(database->families[kCatalogue], KeptKey(run));
  }
  return database_.Write(attempted, *database, batch, true);
}

Status Catalogue::PutDocument(const std::string& run, const std::string& name,
                              const std::optional<std::string>& content) {
  const std::string attempted = "store " + name + " of run '" + run + "'";
  if (content && content->size() > kDocumentBytesMax) {
    return {Code::kInvalidArgument, attempted + ": found " + std::to_string(content->size()) +
                                        " bytes; expected at most " +
                                        std::to_string(kDocumentBytesMax)};
  }
  STATCOLLECT_RETURN_IF_ERROR(CheckRun(attempted, run));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto database, database_.Pin());
  rocksdb::WriteBatch batch;
  if (content) {
    (void)batch.Put(database->families[kCatalogue], DocumentKey(run, name),
                    Seal(kDocumentVersion, *content));
  } else {
    (void)batch.Delete(database->families[kCatalogue], DocumentKey(run, name));
  }
  return database_.Write(attempted, *database, batch, true);
}

Result<std::optional<std::string>> Catalogue::Document(const std::string& run,
                                                       const std::string& name) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto database, database_.Pin());
  const std::string what = name + " of run '" + run + "'";
  STATCOLLECT_ASSIGN_OR_RETURN(const auto sealed,
                               ReadBytes(*database, what, kCatalogue, DocumentKey(run, name)));
  if (!sealed) return sealed;
  STATCOLLECT_ASSIGN_OR_RETURN(auto payload, Unseal("read " + what, *sealed, kDocumentVersion));
  return std::optional(std::string(payload));
}

// Counting takes two seeks, reading a step for each definition, and decoding them ten times as
// long.
Result<SharedDefinitions> Catalogue::Definitions(AttemptId attempt, std::uint32_t rank) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto database, database_.Pin());
  DefinitionCache& cache = database->definitions;
  STATCOLLECT_ASSIGN_OR_RETURN(const auto counts, CountEach([&](char prefix) {
                                 return CountDefinitions(*database, prefix, attempt, rank);
                               }));
  if (auto known = cache.Find(attempt, rank, counts)) return known;
  std::string stored;
  STATCOLLECT_ASSIGN_OR_RETURN(const auto read, CountEach([&](char prefix) {
                                 return AppendStored(*database, prefix, attempt, rank, &stored);
                               }));
  if (auto known = cache.FindStored(attempt, rank, stored)) return known;
  RankDefinitions definitions;
  STATCOLLECT_ASSIGN_OR_RETURN(
      definitions.activations,
      ReadValues<TensorDef>(*database, "activations" + OfRank(attempt, rank), kCatalogue,
                            PrefixRange(RankKey('a', attempt, rank))));
  STATCOLLECT_ASSIGN_OR_RETURN(
      definitions.layouts,
      ReadValues<Layout>(*database, "layouts" + OfRank(attempt, rank), kCatalogue,
                         PrefixRange(RankKey('l', attempt, rank))));
  if (CountsOf(definitions) != read)  // some were added since
    return std::make_shared<const RankDefinitions>(std::move(definitions));
  return cache.Keep(attempt, rank, std::move(stored), std::move(definitions));
}

Result<std::map<std::uint32_t, RankMeta>> Catalogue::Ranks(AttemptId attempt) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto database, database_.Pin());
  const std::string what = "ranks of attempt " + std::to_string(attempt);
  std::map<std::uint32_t, RankMeta> ranks;
  STATCOLLECT_RETURN_IF_ERROR(
      ForEachValue<RankMeta>(*database, what, kCatalogue, AttemptRange('m', attempt),
                             [&](std::string_view key, RankMeta meta) {
                               ranks[ReadU32(key.substr(kRankInKey))] = std::move(meta);
                             }));
  STATCOLLECT_RETURN_IF_ERROR(
      ForEachValue<SessionInfo>(*database, what, kCatalogue, AttemptRange('i', attempt),
                                [&](std::string_view key, SessionInfo info) {
                                  const auto found = ranks.find(ReadU32(key.substr(kRankInKey)));
                                  if (found != ranks.end()) found->second.info = std::move(info);
                                }));
  STATCOLLECT_RETURN_IF_ERROR(ForEachValue<SettingRecord>(
      *database, what, kCatalogue, AttemptRange('c', attempt),
      [&](std::string_view key, SettingRecord setting) {
        if (const auto found = ranks.find(ReadU32(key.substr(kRankInKey))); found != ranks.end())
          found->second.info.config[std::move(setting.name)] = std::move(setting.value);
      }));
  return ranks;
}

// Reads as much of a launch of a thousand ranks as of one of two: every hello asks.
Result<std::optional<RankMeta>> Catalogue::Rank(AttemptId attempt, std::uint32_t rank) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto database, database_.Pin());
  const std::string what = "state" + OfRank(attempt, rank);
  STATCOLLECT_ASSIGN_OR_RETURN(
      auto meta, ReadValue<RankMeta>(*database, what, kCatalogue, RankKey('m', attempt, rank)));
  if (!meta) return meta;
  STATCOLLECT_ASSIGN_OR_RETURN(
      auto info, ReadValue<SessionInfo>(*database, what, kCatalogue, RankKey('i', attempt, rank)));
  if (info) meta->info = *std::move(info);
  STATCOLLECT_RETURN_IF_ERROR(ForEachValue<SettingRecord>(
      *database, what, kCatalogue, PrefixRange(RankKey('c', attempt, rank)),
      [&](std::string_view, SettingRecord setting) {
        meta->info.config[std::move(setting.name)] = std::move(setting.value);
      }));
  return meta;
}

Result<std::vector<AttemptTally>> Catalogue::Census() {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto database, database_.Pin());
  return TakeCensus(*database);
}

Status Catalogue::LoadAttempts(const Database& database, LiveAttempts& live) {
  std::map<AttemptId, std::string> found;
  STATCOLLECT_RETURN_IF_ERROR(
      ForEachValue<AttemptMeta>(database, "attempts", kCatalogue, AllAttempts(),
                                [&](std::string_view, const AttemptMeta& attempt) {
                                  found.emplace(attempt.id, attempt.run);
                                }));
  STATCOLLECT_ASSIGN_OR_RETURN(auto next, NextAttemptId(database));
  for (const AttemptId id : live.snapshot().live) {
    if (!found.contains(id)) live.Remove(id);
  }
  for (const auto& [id, run] : found) live.Add(id, run);
  live.SetNext(next);
  return Status::Ok();
}

}  // namespace statcollect
