// What a run consists of, except its records.
#ifndef STATCOLLECT_SERVER_TRANSFER_RUN_PARTS_H_
#define STATCOLLECT_SERVER_TRANSFER_RUN_PARTS_H_

#include <cstdint>
#include <functional>
#include <string>

#include "common/status.h"
#include "server/store/store.h"

namespace statcollect::transfer {

// Receives the parts in the order in which they are listed here. An error ends the description,
// which returns it.
struct PartVisitor {
  std::function<Status(bool kept)> head;
  std::function<Status(const AttemptMeta&)> attempt;  // by number
  // See documents.h. Documents and events are not read if these two are empty.
  std::function<Status(const std::string& name, const std::string& content)> document;
  std::function<Status(std::uint32_t number, const CollectorEvent&)>
      event;  // numbered from 1 in each rank
  std::function<Status(std::uint32_t number, const RankMeta&)> rank;  // by number and rank
};

// kNotFound: no such run. `run` is a qualified name.
Status DescribeRun(Store& store, const std::string& run, const PartVisitor& visitor);

// The launch of the run with this number. kNotFound: there is none.
Result<AttemptMeta> FindAttempt(RunReader& store, const std::string& run, std::uint32_t number);

}  // namespace statcollect::transfer

#endif  // STATCOLLECT_SERVER_TRANSFER_RUN_PARTS_H_
