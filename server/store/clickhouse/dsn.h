// The address of a ClickHouse store: clickhouse://[USER[:PASSWORD]@]HOST[:PORT][,HOST[:PORT]...]/DATABASE[?quorum=N]
#ifndef STATCOLLECT_SERVER_STORE_CLICKHOUSE_DSN_H_
#define STATCOLLECT_SERVER_STORE_CLICKHOUSE_DSN_H_

#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace statcollect {

inline constexpr std::string_view kClickHouseScheme = "clickhouse://";

struct ClickHouseDsn {
  std::vector<std::string> urls;  // http://HOST:PORT/, tried in this order
  std::string database;           // a plain identifier
  std::string user, password;     // empty: the engine's default user
  // Replicas that must have a write before it counts. 0: the tables are not replicated.
  unsigned quorum = 0;

  // For messages: without the password.
  std::string Describe() const;
};

// kInvalidArgument, in a message without the password.
Result<ClickHouseDsn> ParseClickHouseDsn(const std::string& text);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CLICKHOUSE_DSN_H_
