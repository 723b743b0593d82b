// Parses durations and sizes in flags and configuration files.
#ifndef STATCOLLECT_SERVER_DAEMON_UNITS_H_
#define STATCOLLECT_SERVER_DAEMON_UNITS_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "common/status.h"

namespace statcollect {

// "30d", "12h", "90min", "45s", "2w"; "off": 0. kInvalidArgument names the flag and what it
// accepts.
Result<std::chrono::seconds> ParseDuration(const std::string& flag, const std::string& text);

// "64GiB", "512MiB", "2TiB"; "off": `when_off`.
Result<std::uint64_t> ParseSize(const std::string& flag, const std::string& text,
                                std::uint64_t when_off);

// A size or a share of the disk; the other is 0. "off": both are 0.
struct DiskLimit {
  std::uint64_t bytes = 0;
  unsigned percent = 0;
};
// "200GiB", "512MiB", "2TiB", "80%", "off".
Result<DiskLimit> ParseDiskLimit(const std::string& flag, const std::string& text);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_DAEMON_UNITS_H_
