#include "server/store/rocksdb/drop_attempts.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

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

// `last_of_run`: what belongs to the run goes, too.
void DeleteAttempt(const Database& database, rocksdb::WriteBatch& batch, const AttemptMeta& attempt,
                   bool last_of_run) {
  auto* const catalogue = database.families[kCatalogue];
  if (last_of_run) {
    (void)batch.Delete(catalogue, KeptKey(attempt.run));
    DeletePrefix(batch, catalogue, DocumentKey(attempt.run, ""));
  }
  (void)batch.Delete(catalogue, AttemptKey(attempt));
  for (const char prefix : {'m', 'i', 'c', 'a', 'l', 'x'})
    DeletePrefix(batch, catalogue, KeyBuilder(prefix).U32(attempt.id).Take());
  for (const Family family : kOfAttempts)
    DeletePrefix(batch, database.families[family], KeyBuilder().U32(attempt.id).Take());
}

}  // namespace

Status RemoveAttempts(RecoverableDatabase& store, Aliases& aliases, LiveAttempts& live,
                      std::span<const AttemptId> ids) {
  const auto database = store.Pin();
  if (database == nullptr) return store.Closed();
  const auto attempts = ReadValues<AttemptMeta>(*database, "attempts", kCatalogue, AllAttempts());
  if (!attempts.ok()) return attempts.status();
  const auto is_dropped = [&](const AttemptMeta& attempt) {
    return std::find(ids.begin(), ids.end(), attempt.id) != ids.end();
  };
  aliases.RetireTargets(ids);
  if (Status taken = aliases.TakeOver(*database, ids); !taken.ok()) {
    for (const AttemptMeta& attempt : *attempts) {
      if (is_dropped(attempt)) live.Add(attempt.id);
    }
    return taken;
  }
  std::set<std::string> remaining;
  for (const AttemptMeta& attempt : *attempts) {
    if (!is_dropped(attempt)) remaining.insert(attempt.run);
  }
  rocksdb::WriteBatch batch;
  for (const AttemptMeta& attempt : *attempts) {
    if (is_dropped(attempt)) DeleteAttempt(*database, batch, attempt, !remaining.contains(attempt.run));
  }
  STATCOLLECT_FAILPOINT("drop.shared_blocks_taken_over");
  STATCOLLECT_RETURN_IF_ERROR(store.Write("drop attempts", *database, batch, true, /*frees_space=*/true));
  STATCOLLECT_FAILPOINT("drop.written");
  return Status::Ok();
}

}  // namespace statcollect
