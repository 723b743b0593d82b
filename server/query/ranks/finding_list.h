// Collects the findings of all checks of a run, and the notes of the report.
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

// Findings with the same reason and ranks become one, which names the first place and counts the
// others. Not thread-safe.
class FindingList {
 public:
  explicit FindingList(const KeyTable& keys) : keys_(keys) {}

  // A finding about this tensor in this step, to be completed by the caller.
  RankFinding About(std::uint32_t id, RankReason reason, std::uint64_t step) const;
  // Adds to the finding with this reason and these ranks, or creates it. `cell`: its position in
  // the step. `of`: findings with different values stay separate. The reference is valid until the
  // next call.
  RankFinding& Add(RankFinding finding, const TensorCell& cell, const std::string& of = {});
  // Removes findings about replicas that differ in weights, gradients or optimizer state.
  void RemoveReplicaDifferences();

  // Keeps the first 50 notes.
  void Note(const std::string& note);
  // Keeps the first note of a topic.
  void NoteOnce(const std::string& topic, const std::string& note);

  // Call once, at the end: returns at most `top` findings, each with its sentence, by step, then in
  // the order of the step.
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
