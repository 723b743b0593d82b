// The runs' documents "alarms": up to which step each rank has been judged, as lines "attempt rank
// step".
#ifndef STATCOLLECT_SERVER_ALARMS_JUDGED_DOCUMENTS_H_
#define STATCOLLECT_SERVER_ALARMS_JUDGED_DOCUMENTS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "server/alarms/rank_state.h"
#include "server/store/document_store.h"

namespace statcollect::alarms {

inline constexpr char kDocument[] = "alarms";

// Not thread-safe.
class JudgedDocuments {
 public:
  using Judged = std::map<AttemptRank, std::uint64_t>;

  explicit JudgedDocuments(DocumentStore& store) : store_(store) {}

  // Empty if there is none.
  Judged Read(const std::string& run);
  // More of the run has been judged than its document says.
  void Touch(const std::string& run) { outdated_.insert(run); }
  // Writes the documents of runs that were touched; without `all` only of those that have none yet.
  // `judged_of`: what has been judged of a run's ranks whose state is held.
  void Write(bool all, const std::function<Judged(const std::string& run)>& judged_of);
  void WriteOne(const std::string& run, const Judged& judged);
  // The run has been removed.
  void Forget(const std::string& run) { written_.erase(run); }

 private:
  DocumentStore& store_;
  std::set<std::string> outdated_;
  std::set<std::string> written_;  // runs that have a document
};

}  // namespace statcollect::alarms

#endif  // STATCOLLECT_SERVER_ALARMS_JUDGED_DOCUMENTS_H_
