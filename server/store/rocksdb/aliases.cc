#include "server/store/rocksdb/aliases.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "server/store/rocksdb/block_source.h"
#include "server/store/rocksdb/catalogue_keys.h"
#include "server/store/rocksdb/families.h"
#include "server/store/rocksdb/util.h"

namespace statcollect {
namespace {

constexpr std::size_t kTakeOverBatchBytes = 4 << 20;

// `project`: empty for the default one, as in stores that know none.
std::string ContentKey(const BlockDigest& digest, const std::string& project) {
  return std::string(reinterpret_cast<const char*>(digest.data()), digest.size()) + project;
}

// `listed_as`: the ContentKey under which equal blocks find this one; empty: not listed.
void PutContent(const Database& database, rocksdb::WriteBatch& batch, const StatKey& key,
                const EncodedBlock& block, const std::string& listed_as) {
  const std::string encoded_key = EncodeStatKey(key);
  (void)batch.Put(database.families[kStats], encoded_key, block.stats);
  if (!block.sums.empty()) (void)batch.Put(database.families[kSketches], encoded_key, block.sums);
  if (!listed_as.empty()) (void)batch.Put(database.families[kContents], listed_as, encoded_key);
}

Result<std::vector<AttemptId>> UsersOf(const Database& database, AttemptId owner) {
  std::vector<AttemptId> users;
  const KeyRange range = AttemptRange('x', owner);
  auto it = Iterate(*database.db, database.families[kCatalogue], range);
  for (; it->Valid(); it->Next()) {
    if (it->key().size() == 9) users.push_back(ReadU32(View(it->key()).substr(5)));
  }
  STATCOLLECT_RETURN_IF_ERROR(FromRocks(
      "list the runs that share blocks with attempt " + std::to_string(owner), it->status()));
  return users;
}

}  // namespace

std::optional<StatKey> Aliases::FindTwin(const BlockDigest& digest, AttemptId user) {
  const auto pinned = database_.Pin();
  if (!pinned.ok()) return std::nullopt;
  const Database& database = **pinned;
  const std::string listed_as = ContentKey(digest, live_.ProjectOf(user));
  rocksdb::PinnableSlice value;
  if (!database.db->Get({}, database.families[kContents], listed_as, &value).ok())
    return std::nullopt;
  const auto key = DecodeStatKey(View(value));
  return key && live_.IsInProjectOf(user, key->attempt) ? key : std::nullopt;
}

void Aliases::Put(const Database& database, rocksdb::WriteBatch& batch,
                  const EncodedStatBlock& block, AttemptId user, Pairs* pairs) {
  if (block.twin && live_.IsInProjectOf(user, block.twin->attempt)) {
    (void)batch.Put(database.families[kStats], EncodeStatKey(block.key), block.alias);
    PutPair(database, batch, block.twin->attempt, user, pairs);
  } else {
    PutContent(database, batch, block.key, block.own,
               block.worth_listing ? ContentKey(block.digest, live_.ProjectOf(user)) : "");
  }
}

// Adds the pair to the batch, unless it is in the catalogue.
void Aliases::PutPair(const Database& database, rocksdb::WriteBatch& batch, AttemptId owner,
                      AttemptId user, Pairs* pairs) {
  if (owner == user) return;
  {
    MutexLock lock(noted_mutex_);
    if (noted_.contains({owner, user})) return;
  }
  if (!pairs->emplace(owner, user).second) return;
  (void)batch.Put(database.families[kCatalogue], KeyBuilder('x').U32(owner).U32(user).Take(), "");
}

void Aliases::Note(const Pairs& pairs) {
  MutexLock lock(noted_mutex_);
  noted_.insert(pairs.begin(), pairs.end());
}

void Aliases::RetireTargets(std::span<const AttemptId> ids) {
  std::unique_lock<std::shared_mutex> lock(targets_mutex_);
  for (const AttemptId id : ids) live_.Remove(id);
}

Status Aliases::TakeOver(const Database& database, std::span<const AttemptId> going,
                         const std::function<bool()>& stopped) {
  for (const AttemptId owner : going) {
    STATCOLLECT_ASSIGN_OR_RETURN(auto users, UsersOf(database, owner));
    for (const AttemptId user : users) {
      // Also for one that has been removed since: its data goes later, and queries may be reading
      // it.
      if (std::find(going.begin(), going.end(), user) != going.end()) continue;
      STATCOLLECT_RETURN_IF_ERROR(TakeOverFrom(database, owner, user, stopped));
    }
  }
  return Status::Ok();
}

Status Aliases::TakeOverFrom(const Database& database, AttemptId owner, AttemptId user,
                             const std::function<bool()>& stopped) {
  const std::string attempted = "take over shared blocks of attempt " + std::to_string(owner);
  const KeyRange range = PrefixRange(KeyBuilder().U32(user).Take());
  BlockSource source(*database.db, StatFamiliesOf(database));
  rocksdb::WriteBatch batch;
  auto it = Iterate(*database.db, database.families[kStats], range, /*scan=*/true);
  for (; it->Valid(); it->Next()) {
    if (stopped()) return {Code::kCancelled, attempted + ": stopped; the next start continues"};
    if (database.closing)
      return {Code::kUnavailable, attempted + ": the store is to be opened again"};
    const auto key = DecodeStatKey(View(it->key()));
    if (!key) continue;
    auto reader = BlockReader::Open(*key, View(it->value()));
    if (!reader.ok()) {
      database_.Log(attempted + ": skipped: " + reader.status().message());
      continue;
    }
    if (reader->kind() != BlockReader::Kind::kAlias || reader->target().attempt != owner) continue;
    BlockColumns block;
    if (const Status read = source.Read(*key, *reader, BlockParts::kAll, &block); !read.ok()) {
      if (read.code() != Code::kDataLoss) return read;
      database_.Log(attempted + ": skipped: " + read.message());
      continue;
    }
    PutContent(database, batch, *key, EncodeBlock(block, reader->digest()),
               live_.Contains(user) ? ContentKey(reader->digest(), live_.ProjectOf(user)) : "");
    if (batch.GetDataSize() < kTakeOverBatchBytes) continue;
    STATCOLLECT_RETURN_IF_ERROR(
        database_.Write(attempted, database, batch, true, /*frees_space=*/true));
    batch.Clear();
  }
  STATCOLLECT_RETURN_IF_ERROR(FromRocks(attempted, it->status()));
  return database_.Write(attempted, database, batch, true, /*frees_space=*/true);
}

void Aliases::Forget() {
  MutexLock lock(noted_mutex_);
  noted_.clear();
}

}  // namespace statcollect
