// Attempts and documents of runs.
#ifndef STATCOLLECT_SERVER_STORE_CLICKHOUSE_ATTEMPTS_H_
#define STATCOLLECT_SERVER_STORE_CLICKHOUSE_ATTEMPTS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/status.h"
#include "server/store/attempt.h"
#include "server/store/clickhouse/engine.h"
#include "server/store/clickhouse/shared_reads.h"

namespace statcollect {

enum class AttemptState : std::uint8_t {
  kLive = 0,
  kRetired = 1,  // no list has it
  kPurged = 2,   // its data is being or has been deleted
};

struct AttemptRow {
  AttemptMeta meta;
  AttemptState state = AttemptState::kLive;
  std::uint64_t version = 0;
};

// The methods are those of Store, with the same contracts, for any number of collectors at the same
// tables.
//
// An attempt's id is made of its run, launch and number, so that two collectors that create the
// same attempt at the same time make the same one. Ids stay in the table forever, with their state,
// and are not given out again.
//
// A document belongs to the attempts that its run had when it was written, and is gone with the
// last of them: the next run of that name does not find it.
//
// Threads: any. Writers of the same process hold the store's catalogue mutex.
class AttemptTable {
 public:
  explicit AttemptTable(Engine& engine);

  Result<std::vector<std::string>> ListRuns();
  Result<std::vector<AttemptMeta>> Attempts(const std::string& run);
  // `wanted.number`: the number that the caller expects, 0 for the next one. If another collector
  // has created the attempt of that number for the same launch meanwhile, it is that one.
  Result<AttemptMeta> CreateAttempt(const AttemptMeta& wanted);
  Status RetireAttempts(std::span<const AttemptId> ids);
  Status PurgeRetired(const std::function<bool()>& stopped);
  Status KeepRun(const std::string& run, bool keep);
  Status PutDocument(const std::string& run, const std::string& name,
                     const std::optional<std::string>& content);
  Result<std::optional<std::string>> Document(const std::string& run, const std::string& name);

  // All of them, by id. With `run`: only its.
  Result<std::vector<AttemptRow>> Rows(const std::string* run = nullptr);
  Result<std::optional<AttemptRow>> Row(AttemptId id);
  // Of the live attempts, by run and number; no two of a run have the same. With `run`: only its.
  Result<std::vector<AttemptMeta>> Live(const std::string* run = nullptr);
  Result<std::set<std::string>> KeptRuns();
  // kNotFound, unless the attempt is live.
  Status CheckLive(const std::string& attempted, AttemptId id);
  // Writes that these attempts are removed, unless it is known, so that whoever reads or writes
  // here finds it.
  Status PutRemoved(const std::vector<AttemptRow>& removed);
  // kAborted if the attempt's data may be gone, so that a read that ended may have ended early.
  Status CheckStillThere(const std::string& attempted, AttemptId id);

 private:
  enum class DocumentKind : std::uint8_t { kDocument = 0, kKept = 1 };
  struct DocumentRow {
    std::string run, owners, value;
    std::uint64_t version = 0;
    bool gone = false;
  };

  using RunAndName = std::pair<std::string, std::string>;

  Result<std::vector<AttemptRow>> RowsWhere(const std::string& where);
  Status PutRow(const std::string& attempted, const AttemptRow& row);
  // Rows of each attempt that the engine has, which may be rows that do not count, or twice the
  // same.
  Result<std::map<AttemptId, std::uint64_t>> StoredRows(const std::string& attempted);
  Status DropData(const std::string& attempted, AttemptId id);
  Result<AttemptMeta> CreateAs(AttemptRow row);
  Result<std::vector<DocumentRow>> Documents(const std::string& where, bool with_value);
  Status WriteDocument(const std::string& attempted, const std::string& run, DocumentKind kind,
                       const std::string& name, const std::optional<std::string>& content);

  Engine& engine_;
  // What every hello asks for.
  SharedReads<std::string, std::monostate, std::vector<AttemptMeta>> attempts_;  // by run
  SharedReads<RunAndName, std::monostate, std::vector<DocumentRow>> documents_;  // at most one row
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CLICKHOUSE_ATTEMPTS_H_
