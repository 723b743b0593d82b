// Memory in use, by phase of the step or by module.
#ifndef STATCOLLECT_SERVER_QUERY_ANSWERS_MEMORY_H_
#define STATCOLLECT_SERVER_QUERY_ANSWERS_MEMORY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"
#include "server/query/context.h"

namespace statcollect::v1 {
class ListMemoryRequest;
class ListMemoryResponse;
}  // namespace statcollect::v1

namespace statcollect::query {

struct MemoryRequest {
  std::string run;
  std::vector<std::uint32_t> ranks;  // empty: all
  std::string steps;
  bool modules = false;  // of single modules instead of the phases
};

// kInvalidArgument: names that no run can have, more ranks than a run can have.
Result<MemoryRequest> FromWire(const v1::ListMemoryRequest& request);

// Sorted by rank, step and time; each step from the newest attempt that has it.
Status ListMemory(const Context& context, const MemoryRequest& request, v1::ListMemoryResponse& out);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_ANSWERS_MEMORY_H_
