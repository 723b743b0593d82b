// Writes runs that are copied from another collector, as an interface: ingest implements it, api
// uses it. Their records come in as a stream of their own (IngestStream), between BeginCopy and
// PutRank.
//
// Until PutRank, a copied rank has the inverse of the original session's id, so that its own agent
// is not taken for the one that writes it, and its watermark is the number of records that have
// been copied.
#ifndef STATCOLLECT_SERVER_TRANSFER_RUN_COPIES_H_
#define STATCOLLECT_SERVER_TRANSFER_RUN_COPIES_H_

#include <cstdint>
#include <span>
#include <string>

#include "common/records.h"
#include "common/status.h"
#include "server/store/record_writer.h"

namespace statcollect {

inline SessionId InverseOf(SessionId session) {
  for (std::uint8_t& byte : session) byte = static_cast<std::uint8_t>(~byte);
  return session;
}

// Thread-safe. `run` is a qualified name. kAlreadyExists: the run has other content. kNotFound:
// BeginCopy was not called for it, or it was removed since.
class RunCopies {
 public:
  virtual ~RunCopies() = default;
  // Makes the launches that are not there yet, with their numbers and times. `attempts`: all of the
  // run's, by number; their ids mean nothing. kInvalidArgument: numbers that do not ascend.
  virtual Status BeginCopy(const std::string& run, std::span<const AttemptMeta> attempts) = 0;
  // `number`: of the launch.
  virtual Status PutEvent(const std::string& run, std::uint32_t number,
                          const CollectorEvent& event) = 0;
  // Launches in it are given by their number.
  virtual Status PutRunDocument(const std::string& run, const std::string& name,
                                const std::string& content) = 0;
  // Completes a copied rank: it gets the state and the session of the original. No effect on one
  // that is complete.
  virtual Status PutCopiedRank(std::uint32_t number, const RankMeta& meta) = 0;
  virtual Status KeepRun(const std::string& run, bool keep) = 0;
  // Of the run, at this collector.
  virtual std::uint32_t StreamsOpen(const std::string& run) = 0;
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_TRANSFER_RUN_COPIES_H_
