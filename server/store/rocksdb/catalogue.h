// Runs, attempts, ranks, definitions and documents, in the catalogue family.
#ifndef STATCOLLECT_SERVER_STORE_ROCKSDB_CATALOGUE_H_
#define STATCOLLECT_SERVER_STORE_ROCKSDB_CATALOGUE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/status.h"
#include "server/store/live_attempts.h"
#include "server/store/rocksdb/database.h"
#include "server/store/rocksdb/recovery.h"
#include "server/store/run_reader.h"

namespace statcollect {

// The methods are those of Store, with the same contracts.
//
// Threads: any may read. Writers (CreateAttempt, KeepRun, PutDocument) hold the store's catalogue
// mutex, so that a run that was found still exists when it is written. Writes are synced.
class Catalogue {
 public:
  // Borrows both.
  Catalogue(RecoverableDatabase& database, LiveAttempts& live) : database_(database), live_(live) {}

  Result<std::vector<std::string>> ListRuns();
  Result<std::vector<AttemptMeta>> Attempts(const std::string& run);
  Result<AttemptMeta> CreateAttempt(const AttemptMeta& wanted);
  Status KeepRun(const std::string& run, bool keep);
  Status PutDocument(const std::string& run, const std::string& name,
                     const std::optional<std::string>& content);
  Result<std::optional<std::string>> Document(const std::string& run, const std::string& name);
  Result<SharedDefinitions> Definitions(AttemptId attempt, std::uint32_t rank);
  Result<std::map<std::uint32_t, RankMeta>> Ranks(AttemptId attempt);
  Result<std::optional<RankMeta>> Rank(AttemptId attempt, std::uint32_t rank);
  Result<std::vector<AttemptTally>> Census();

  // Sets `live` to the attempts in the database; after a failed write they may differ from the
  // expected ones.
  static Status LoadAttempts(const Database& database, LiveAttempts& live);

 private:
  // kNotFound unless there is such a run.
  Status CheckRun(const std::string& attempted, const std::string& run);

  RecoverableDatabase& database_;
  LiveAttempts& live_;
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_ROCKSDB_CATALOGUE_H_
