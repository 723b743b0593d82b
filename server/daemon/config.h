// Configuration of statcollectord: command line, then configuration file, then defaults.
#ifndef STATCOLLECT_SERVER_DAEMON_CONFIG_H_
#define STATCOLLECT_SERVER_DAEMON_CONFIG_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "common/status.h"
#include "server/control/alarm_settings.h"
#include "server/daemon/units.h"
#include "server/http/endpoint.h"

namespace statcollect {

struct DaemonConfig {
  std::string data_dir = "./statcollect-data";
  Endpoint listen{.host = "127.0.0.1", .port = 7433};                          // gRPC
  std::optional<Endpoint> http = Endpoint{.host = "127.0.0.1", .port = 7434};  // absent: off
  bool fsync = true;                     // false: acknowledge once the system has the data
  bool insecure = false;                 // allow addresses that other machines can reach
  std::uint64_t disk_free_min_mib = 64;  // below it ingest is refused
  unsigned query_threads = 2;
  std::string log_level = "info";
  std::chrono::seconds retention{0};  // age of a run's last write; 0: off
  DiskLimit max_disk;                 // of the store
  AlarmSettings alarms;
  std::string alarm_webhook;     // http[s]://HOST[:PORT][/PATH]; empty: none
  std::string alarm_webhook_ca;  // file of certificate authorities, PEM; empty: the system's
  std::string restore_from;      // checkpoint to begin with; empty: none
};

// What the command line asked for: to run, or to print something and exit with a code.
struct ParsedCommandLine {
  DaemonConfig config;
  std::optional<int> exit_code;  // set: print `text` (standard output if 0, else standard error) and exit
  std::string text;
};

// Never exits or prints by itself. Errors (unknown flag, unreadable or wrong configuration file, bad address,
// address that other machines can reach without `insecure`) come back with exit code 2.
ParsedCommandLine ParseCommandLine(int argc, const char* const* argv, const std::string& version);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_DAEMON_CONFIG_H_
