#include "server/store/rocksdb/remove_attempts.h"

#include <algorithm>
#include <set>
#include <string>

#include "common/failpoint.h"
#include "server/store/rocksdb/catalogue_keys.h"
#include "server/store/rocksdb/families.h"
#include "server/store/rocksdb/values.h"

namespace statcollect {
namespace {

void DeletePrefix(rocksdb::WriteBatch& batch, rocksdb::ColumnFamilyHandle* family,
                  const std::string& prefix) {
  (void)batch.DeleteRange(family, prefix, PrefixEnd(prefix));
}

// What is found by the run's name goes at once, because the next run may have that name.
void Hide(const Database& database, rocksdb::WriteBatch& batch, const AttemptMeta& attempt,
          bool last_of_run) {
  auto* const catalogue = database.families[kCatalogue];
  if (last_of_run) {
    (void)batch.Delete(catalogue, KeptKey(attempt.run));
    DeletePrefix(batch, catalogue, DocumentKey(attempt.run, ""));
  }
  (void)batch.Delete(catalogue, AttemptKey(attempt));
  (void)batch.Put(catalogue, HiddenKey(attempt.id), "");
}

void Delete(const Database& database, rocksdb::WriteBatch& batch, AttemptId id) {
  auto* const catalogue = database.families[kCatalogue];
  for (const char prefix : {'m', 'i', 'c', 'a', 'l', 'x'})
    DeletePrefix(batch, catalogue, KeyBuilder(prefix).U32(id).Take());
  for (const Family family : kOfAttempts)
    DeletePrefix(batch, database.families[family], KeyBuilder().U32(id).Take());
  (void)batch.Delete(catalogue, HiddenKey(id));
}

}  // namespace

Status HideAttempts(RecoverableDatabase& store, Aliases& aliases, LiveAttempts& live,
                    std::span<const AttemptId> ids) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto database, store.Pin());
  STATCOLLECT_ASSIGN_OR_RETURN(
      const auto attempts,
      ReadValues<AttemptMeta>(*database, "attempts", kCatalogue, AllAttempts()));
  std::vector<AttemptMeta> going;
  std::set<std::string> remaining;
  for (const AttemptMeta& attempt : attempts) {
    if (std::find(ids.begin(), ids.end(), attempt.id) != ids.end())
      going.push_back(attempt);
    else
      remaining.insert(attempt.run);
  }
  if (going.empty()) return Status::Ok();
  // Before the write: what becomes an alias of a hidden attempt's block later would not be found.
  aliases.RetireTargets(ids);
  rocksdb::WriteBatch batch;
  for (const AttemptMeta& attempt : going)
    Hide(*database, batch, attempt, !remaining.contains(attempt.run));
  const Status written =
      store.Write("remove attempts", *database, batch, true, /*frees_space=*/true);
  if (!written.ok()) {
    for (const AttemptMeta& attempt : going) live.Add(attempt.id, attempt.run);
  }
  STATCOLLECT_FAILPOINT("drop.hidden");
  return written;
}

Result<std::vector<AttemptId>> DeleteHidden(RecoverableDatabase& store, Aliases& aliases,
                                            const std::function<bool()>& stopped) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto database, store.Pin());
  auto going = HiddenAttempts(*database);
  if (!going.ok() || going->empty()) return going;
  STATCOLLECT_RETURN_IF_ERROR(aliases.TakeOver(*database, *going, stopped));
  STATCOLLECT_FAILPOINT("drop.shared_blocks_taken_over");
  rocksdb::WriteBatch batch;
  for (const AttemptId id : *going) Delete(*database, batch, id);
  STATCOLLECT_RETURN_IF_ERROR(
      store.Write("delete removed attempts", *database, batch, true, /*frees_space=*/true));
  STATCOLLECT_FAILPOINT("drop.written");
  return going;
}

Result<std::vector<AttemptId>> HiddenAttempts(const Database& database) {
  std::vector<AttemptId> hidden;
  const KeyRange range = AllHidden();
  auto it = Iterate(*database.db, database.families[kCatalogue], range);
  for (; it->Valid(); it->Next()) {
    if (it->key().size() == HiddenKey(0).size())
      hidden.push_back(ReadU32(View(it->key()).substr(1)));
  }
  STATCOLLECT_RETURN_IF_ERROR(FromRocks("list removed attempts", it->status()));
  return hidden;
}

}  // namespace statcollect
