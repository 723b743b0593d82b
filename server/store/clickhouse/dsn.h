// The address of a ClickHouse store:
//   clickhouse://[USER[:PASSWORD]@]HOST[:PORT][,HOST[:PORT]...]/DATABASE[?quorum=N]
//   clickhouses://...[?ca=FILE][&quorum=N]   the same over TLS
#ifndef STATCOLLECT_SERVER_STORE_CLICKHOUSE_DSN_H_
#define STATCOLLECT_SERVER_STORE_CLICKHOUSE_DSN_H_

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

struct ClickHouseDsn {
  std::vector<std::string> urls;  // http://HOST:PORT/ or https://, tried in this order
  std::string database;           // a plain identifier
  std::string user, password;     // empty: the engine's default user
  // Replicas that must have a write before it counts. 0: the tables are not replicated.
  unsigned quorum = 0;
  bool tls = false;
  std::string ca_file;  // certificates of the authorities that are trusted; empty: the system's

  // For messages: without the password.
  std::string Describe() const;
};

// kInvalidArgument, in a message without the password.
Result<ClickHouseDsn> ParseClickHouseDsn(const std::string& text);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CLICKHOUSE_DSN_H_
