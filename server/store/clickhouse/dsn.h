// The address of a ClickHouse store:
//   clickhouse://[USER[:PASSWORD]@]HOST[:PORT][,HOST[:PORT]...]/DATABASE[?quorum=N]
//   clickhouses://...[?ca=FILE][&quorum=N]   the same over TLS
//   clickhouse://SHARD|SHARD.../DATABASE     several shards, each with hosts of its own; a shard
//                                            may have its own user and password, and /DATABASE
#ifndef STATCOLLECT_SERVER_STORE_CLICKHOUSE_DSN_H_
#define STATCOLLECT_SERVER_STORE_CLICKHOUSE_DSN_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace statcollect {

inline constexpr std::string_view kClickHouseScheme = "clickhouse://";
inline constexpr std::string_view kClickHouseTlsScheme = "clickhouses://";

inline bool IsClickHouseAddress(std::string_view text) {
  return text.starts_with(kClickHouseScheme) || text.starts_with(kClickHouseTlsScheme);
}

// One shard: all hosts have the same tables.
struct ClickHouseDsn {
  std::vector<std::string> urls;  // http://HOST:PORT/ or https://, tried in this order
  std::string database;           // a plain identifier
  std::string user, password;     // empty: the engine's default user
  // Replicas that must have a write before it counts, at least 2. 0: the tables are not replicated.
  // There is no 1: consistent reads do not see what was written without a quorum once something
  // else was written with one.
  unsigned quorum = 0;
  bool tls = false;
  std::string ca_file;     // certificates of the authorities that are trusted; empty: the system's
  std::size_t number = 1;  // of the shard, and how many there are
  std::size_t shards = 1;

  // For messages: without the password.
  std::string Describe() const;
  // "shard 2 of 3 "; empty if there is one.
  std::string ShardName() const;
};

inline constexpr std::size_t kShardsMax = 64;

// The shards in their order, at least one. kInvalidArgument, in a message without passwords.
Result<std::vector<ClickHouseDsn>> ParseClickHouseDsn(const std::string& text);
// For messages: without passwords.
std::string Describe(const std::vector<ClickHouseDsn>& shards);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CLICKHOUSE_DSN_H_
