#include "server/store/rocksdb/reclaim.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <numeric>
#include <system_error>
#include <vector>

#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/experimental.h>

#include "server/store/rocksdb/catalogue_keys.h"
#include "server/store/rocksdb/census.h"
#include "server/store/rocksdb/families.h"
#include "server/store/rocksdb/values.h"

namespace statcollect {
namespace {

// Most dropped attempts between two merges: their tombstones are in the scanned part of the
// catalogue.
constexpr std::size_t kRemovedPerMerge = 64;
// Space that is not worth a merge, and space that a merge leaves free beside what it writes.
constexpr std::uint64_t kReclaimMin = std::uint64_t{16} << 20;
constexpr std::uint64_t kReclaimSpare = std::uint64_t{256} << 20;

rocksdb::CompactRangeOptions MergeOptions() {
  rocksdb::CompactRangeOptions options;
  options.exclusive_manual_compaction = false;
  options.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForceOptimized;
  return options;
}

// Gives back whole files of a removed attempt at once, and asks for a compaction of files that hold
// other attempts too.
void FreeFiles(const Database& database, AttemptId id) {
  const KeyRange range = PrefixRange(KeyBuilder().U32(id).Take());
  const rocksdb::Slice begin = range.begin;
  for (const Family family : kOfAttempts) {
    (void)rocksdb::DeleteFilesInRange(database.db.get(), database.families[family], &begin,
                                      &range.end_slice,
                                      /*include_end=*/false);
    (void)rocksdb::experimental::SuggestCompactRange(database.db.get(), database.families[family],
                                                     &begin, &range.end_slice);
  }
}

// Whether more than half of a family's bytes are of no attempt any more, and there is space for a
// merge: what is rewritten is then less than what was removed.
bool IsWorthAMerge(const Database& database, Family family, std::span<const AttemptId> attempts,
                   const std::string& directory) {
  const auto sizes = SizesOf(database, family, attempts, /*memtables=*/false);
  if (!sizes.ok()) return false;
  std::uint64_t held = 0;
  database.db->GetIntProperty(database.families[family],
                              rocksdb::DB::Properties::kTotalSstFilesSize, &held);
  const std::uint64_t live = std::accumulate(sizes->begin(), sizes->end(), std::uint64_t{0});
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(directory, error);
  return held > 2 * live + kReclaimMin && !error && space.available >= live + kReclaimSpare;
}

}  // namespace

Reclaimer::~Reclaimer() {
  if (const auto database = database_.Pin(); database.ok())
    (*database)->db->DisableManualCompaction();
  if (thread_.joinable()) thread_.join();
}

void Reclaimer::StartAfter(std::span<const AttemptId> removed) {
  if (const auto database = database_.Pin(); database.ok()) {
    for (const AttemptId id : removed) FreeFiles(**database, id);
  }
  removed_ += removed.size();
  Start();
}

void Reclaimer::Start() {
  wanted_ = true;
  if (running_.exchange(true)) return;
  if (thread_.joinable()) thread_.join();  // has ended
  thread_ = std::thread([this] {
    while (wanted_.exchange(false)) {
      if (removed_ >= kRemovedPerMerge) {
        removed_ = 0;  // those that come from here on count for the next merge
        MergeCatalogue();
      }
      MergeFiles();
    }
    running_ = false;
  });
}

void Reclaimer::Pause() {
  if (!running_) return;
  thread_.join();
  wanted_ = true;
}

void Reclaimer::Resume() {
  if (wanted_) Start();
}

// Files that hold several attempts keep the space of those that were removed until they are merged,
// which by itself happens once there are many.
void Reclaimer::MergeFiles() {
  const auto pinned = database_.Pin();
  if (!pinned.ok()) return;
  const Database& database = **pinned;
  const auto attempts = ReadValues<AttemptMeta>(database, "attempts", kCatalogue, AllAttempts());
  if (!attempts.ok()) return;
  std::vector<AttemptId> ids;
  for (const AttemptMeta& attempt : *attempts) ids.push_back(attempt.id);
  for (const Family family : {kStats, kSketches, kCaptures}) {
    if (!IsWorthAMerge(database, family, ids, directory_)) continue;
    if (!MayFlush()) return;
    (void)database.db->CompactRange(MergeOptions(), database.families[family], nullptr, nullptr);
  }
}

// Takes the tombstones out of the parts of the catalogue that are scanned as a whole.
void Reclaimer::MergeCatalogue() {
  const auto pinned = database_.Pin();
  if (!pinned.ok()) return;
  const Database& database = **pinned;
  for (const auto& [begin, end] : {std::pair("g", "h"), std::pair("m", "n"), std::pair("r", "s")}) {
    const rocksdb::Slice first(begin), last(end);
    if (!MayFlush()) return;
    (void)database.db->CompactRange(MergeOptions(), database.families[kCatalogue], &first, &last);
  }
}

// Checked before each merge, because a merge begins with a flush. After a failed write, a flush
// fails, too. In builds of RocksDB with assertions, a second failed flush of the same memtable ends
// the process (it prepares its range tombstones again). Opening the store again gives new
// memtables.
bool Reclaimer::MayFlush() const { return database_.health().ok(); }

}  // namespace statcollect
