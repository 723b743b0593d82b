// The collector's process, started here or elsewhere, and its resource use from /proc.
#ifndef STATCOLLECT_BENCH_INGEST_DAEMON_H_
#define STATCOLLECT_BENCH_INGEST_DAEMON_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"

namespace statcollect::bench {

// What a process has used so far.
struct ProcessUse {
  double cpu_seconds = 0;  // user and system
  std::uint64_t rss_bytes = 0, rss_peak_bytes = 0;
};
// Reads the use of a process on this machine; kNotFound if it does not exist.
Result<ProcessUse> ReadUse(pid_t pid);

// Sizes of the files of a data directory, by what they hold.
struct StoredBytes {
  std::uint64_t tables = 0, log = 0, other = 0;
  std::uint64_t total() const { return tables + log + other; }
};
StoredBytes MeasureStored(const std::string& directory);

// A program that prints a ready line with "grpc HOST:PORT". Ended by pid in the destructor if Stop
// was not called.
class SpawnedServer {
 public:
  // The program gets `arguments`; its standard error is ours.
  static Result<SpawnedServer> Start(const std::string& program,
                                     const std::vector<std::string>& arguments);
  SpawnedServer(SpawnedServer&& other) noexcept;
  SpawnedServer& operator=(SpawnedServer&&) = delete;
  ~SpawnedServer();

  pid_t pid() const { return pid_; }
  const std::string& address() const { return address_; }
  // SIGTERM, waits for the end. `use`: all that the process has used in its life. An error if it
  // did not exit with 0.
  Status Stop(ProcessUse* use);

 private:
  SpawnedServer(pid_t pid, std::string address) : pid_(pid), address_(std::move(address)) {}

  pid_t pid_;
  std::string address_;
};

// The arguments of a statcollectord on any free port.
std::vector<std::string> DaemonArguments(const std::string& data_dir,
                                         const std::string& durability);

}  // namespace statcollect::bench

#endif  // STATCOLLECT_BENCH_INGEST_DAEMON_H_
