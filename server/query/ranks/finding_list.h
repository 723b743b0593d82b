// What the checks of a run have found so far, and the notes of the report.
#ifndef STATCOLLECT_SERVER_QUERY_RANKS_FINDING_LIST_H_
#define STATCOLLECT_SERVER_QUERY_RANKS_FINDING_LIST_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "server/query/compare/step_order.h"
#include "server/query/ranks/rank_keys.h"
#include "server/query/ranks/ranks.h"
#include "server/query/ranks/scan.h"

namespace statcollect::query {

// Findings of one reason about the same ranks become one, which names the first place and counts the others.
// Not thread-safe.
class FindingList {
 public:
  explicit FindingList(const KeyTable& keys) : keys_(keys) {}

  // A finding about this tensor in this step, for the caller to complete.
  RankFinding About(std::uint32_t id, RankReason reason, std::uint64_t step) const;
  // Adds to the finding of this reason and ranks, or makes it. `cell`: where it is in its step. `of`: findings
  // with another one stay apart. The reference is valid until the next call.
  RankFinding& Add(RankFinding finding, const TensorCell& cell, const std::string& of = {});
  // Removes what says that replicas differ in weights, gradients or optimizer state.
  void RemoveReplicaDifferences();

  // Notes beyond the first 50 are left out.
  void Note(const std::string& note);
  // The first one of a topic.
  void NoteOnce(const std::string& topic, const std::string& note);

  // Once, in the end: by step, then in the order of the step, at most `top`, each with its sentence.
  std::vector<RankFinding> TakeFindings(std::size_t top);
  std::vector<std::string> TakeNotes() { return std::move(notes_); }

 private:
  struct Listed {
    RankFinding finding;
    ReportOrder place_in_order;
    std::set<std::uint32_t> keys;  // distinct tensors, by slot
  };

  ReportOrder PlaceOf(const RankFinding& finding, const TensorCell& cell) const;

  const KeyTable& keys_;
  std::map<std::tuple<RankReason, Ranks, std::string>, Listed> findings_;
  std::vector<std::string> notes_;
  std::set<std::string> noted_;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_RANKS_FINDING_LIST_H_
