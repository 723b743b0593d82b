// The collector that a subcommand talks to: one that runs already, or one started for the
// measurement.
#ifndef STATCOLLECT_BENCH_INGEST_TARGET_H_
#define STATCOLLECT_BENCH_INGEST_TARGET_H_

#include <sys/types.h>

#include <optional>
#include <string>

#include "bench/ingest/daemon.h"
#include "common/status.h"
#include "statcollect/v1/admin.pb.h"

namespace CLI {
class App;
}

namespace statcollect::bench {

class Target {
 public:
  // --collector, --spawn, --data-dir, --durability. Outlives the parsing.
  void AddFlags(CLI::App* command);

  // Starts the daemon if one is to be started. kInvalidArgument: the flags do not say which
  // collector.
  Status Start();
  // Only for a process that Start has started; `use` may be null.
  Status Stop(ProcessUse* use);

  bool spawns() const { return !spawn_.empty(); }
  bool has_data_dir() const { return !data_dir_.empty(); }
  const std::string& address() const { return address_; }
  pid_t pid() const { return pid_; }
  const std::string& durability() const { return durability_; }
  // Empty without a data directory.
  StoredBytes Stored() const { return has_data_dir() ? MeasureStored(data_dir_) : StoredBytes{}; }
  // The files of the data folder into the operating system's cache, or out of it (what has been
  // written back).
  Status ReadFiles() const { return ForEachFile(/*read=*/true); }
  Status ForgetFiles() const { return ForEachFile(/*read=*/false); }
  // Empty if the process is on a different machine.
  std::optional<ProcessUse> Use() const;
  Result<v1::GetStatusResponse> GetStatus() const;

 private:
  Status ForEachFile(bool read) const;

  std::string collector_, spawn_, data_dir_, durability_ = "fsync";
  std::string address_;
  pid_t pid_ = 0;
  std::optional<SpawnedServer> server_;
};

}  // namespace statcollect::bench

#endif  // STATCOLLECT_BENCH_INGEST_TARGET_H_
