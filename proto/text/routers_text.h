// Sentences about the routers of mixtures of experts.
#ifndef STATCOLLECT_PROTO_TEXT_ROUTERS_TEXT_H_
#define STATCOLLECT_PROTO_TEXT_ROUTERS_TEXT_H_

#include <string>
#include <vector>

#include "statcollect/v1/query.pb.h"

namespace statcollect {

// What a router chose in both runs, and what follows from that: `text` of the message. `report`:
// gives the names of the runs.
std::string RouterText(const v1::RouterDiff& router, const v1::DiffReport& report);

// One line for each router that chose otherwise, or behind which something differs, up to 10; then
// one that counts the others. Empty: no router was compared.
std::vector<std::string> RouterLines(const v1::DiffReport& report);

}  // namespace statcollect

#endif  // STATCOLLECT_PROTO_TEXT_ROUTERS_TEXT_H_
