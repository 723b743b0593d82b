// What the names in clients' certificates allow, from the collector's command line.
#ifndef STATCOLLECT_SERVER_ACCESS_GRANTS_H_
#define STATCOLLECT_SERVER_ACCESS_GRANTS_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/status.h"
#include "server/access/scopes.h"

namespace statcollect::access {

inline constexpr std::size_t kGrantsMax = 1000;

struct Grant {
  ScopeSet scopes;
  std::string project;  // empty: all
};
using Grants = std::map<std::string, Grant, std::less<>>;  // by name

// Of texts "NAME=SCOPES" or "NAME=SCOPES@PROJECT", such as "rank7.gpu.example=ingest,read@vision".
// kInvalidArgument: another form, an unknown scope, a name twice.
Result<Grants> ParseGrants(const std::vector<std::string>& texts);

}  // namespace statcollect::access

#endif  // STATCOLLECT_SERVER_ACCESS_GRANTS_H_
