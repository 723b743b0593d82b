// The configuration of one run, or what differs between two: a checklist by category, most likely
// culprits first.
#ifndef STATCOLLECT_SERVER_QUERY_ANSWERS_CONFIG_H_
#define STATCOLLECT_SERVER_QUERY_ANSWERS_CONFIG_H_

#include <string_view>

#include "server/query/answers/leaf.h"

namespace statcollect::query {

struct ConfigRequest {
  std::string run_a, run_b;  // b empty: only a
  bool all = false;
};

Result<ConfigRequest> FromWire(const v1::CompareConfigRequest& request);

// From words of the key ("model.ln_eps": model), never from the value.
v1::ConfigCategory CategoryOf(std::string_view key);

// The settings of the newest attempt's lowest rank, and these facts: "world_size", "host",
// "agent.version". What cannot be compared is left out, with a note (recorded_config.h).
Status CompareConfig(const Context& context, const ConfigRequest& request, v1::ConfigReport& out);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_ANSWERS_CONFIG_H_
