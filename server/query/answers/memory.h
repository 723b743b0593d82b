// Memory in use, by phase of the step or by module.
#ifndef STATCOLLECT_SERVER_QUERY_ANSWERS_MEMORY_H_
#define STATCOLLECT_SERVER_QUERY_ANSWERS_MEMORY_H_

#include "server/query/answers/leaf.h"

namespace statcollect::query {

struct MemoryRequest {
  std::string run;
  std::vector<std::uint32_t> ranks;  // empty: all
  std::string steps;
  bool modules = false;  // of single modules instead of the phases
};

Result<MemoryRequest> FromWire(const v1::ListMemoryRequest& request);

// Sorted by rank, step and time; each step from the newest attempt that has it.
Status ListMemory(const Context& context, const MemoryRequest& request,
                  v1::ListMemoryResponse& out);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_ANSWERS_MEMORY_H_
