// The records of a step of two runs side by side: what every comparison of records means by a pair.
#ifndef STATCOLLECT_SERVER_QUERY_COMPARE_PAIRED_STEP_H_
#define STATCOLLECT_SERVER_QUERY_COMPARE_PAIRED_STEP_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "server/query/compare/alignment.h"
#include "server/query/compare/fused_pair.h"
#include "server/query/run_view.h"

namespace statcollect::query {

// Records of a step by the id of their activation. Borrows them.
class ById {
 public:
  ById() = default;
  // `size`: more than any id.
  explicit ById(std::size_t size) : records_(size, nullptr) {}
  ById(std::span<const Observation> records, std::size_t size) : ById(size) {
    for (const Observation& seen : records) Set(seen.def->id, seen);
  }
  // Ignores Alignment::kNone.
  void Set(std::uint32_t id, const Observation& record) {
    if (id < records_.size()) records_[id] = &record;
  }
  // Null: the step has none, or the id is Alignment::kNone.
  const Observation* Find(std::uint32_t id) const {
    return id < records_.size() ? records_[id] : nullptr;
  }

 private:
  std::vector<const Observation*> records_;
};

// A record of each run, or a whole group, whose sides have been made comparable.
struct RecordPair {
  Observation a, b;
  const AlignedGroup* group = nullptr;  // null: two records
  // The activation that the pair counts as: of a group, A's first part.
  std::uint32_t id_a() const { return group == nullptr ? a.def->id : group->a.front(); }
};

// A record that nothing in the step can be compared with.
struct LoneRecord {
  Observation record;
  // Of B's: the last record before it of which A has something, by the orders in which A and B ran
  // it; of a part of a group, the first part that A has and itself. Absent: there is none.
  struct Orders {
    std::uint32_t a = 0, b = 0;
  };
  std::optional<Orders> behind;
};

// One step of a rank. Invariant: a record is in one pair or alone, unless the map or the request
// leaves it out. The parts of a group are a pair if the step has all of them, and alone otherwise.
// Borrows the records and the alignment.
class PairedStep {
 public:
  enum class Kinds : std::uint8_t {
    kAll,  // but operators, which zooms compare
    kRequested
  };

  PairedStep() = default;
  // `a`, `b`: all records, in the order of execution. Cost: a look-up for each of them.
  PairedStep(const Alignment& alignment, std::span<const Observation> a,
             std::span<const Observation> b, Kinds kinds = Kinds::kAll);
  PairedStep(PairedStep&&) = default;
  PairedStep& operator=(PairedStep&&) = default;

  // In A's order, a group at its first part. What they point to is valid as long as this, wherever
  // it is moved.
  const std::vector<RecordPair>& pairs() const { return pairs_; }
  // In A's order, then parts of groups of which A lacks the first one.
  const std::vector<LoneRecord>& only_a() const { return only_a_; }
  // Parts of groups in A's order, then the others in B's.
  const std::vector<LoneRecord>& only_b() const { return only_b_; }
  // What another run recorded in place of A's side of a pair, whose definition has the id `id_a`,
  // made comparable with it in the same way; without a definition if it recorded nothing there.
  // `others`: its records by A's ids, which must outlive this.
  Observation InPlaceOfA(std::uint32_t id_a, const ById& others);

 private:
  using PartsOfB = std::map<std::uint32_t, std::optional<LoneRecord::Orders>>;  // by id
  void AddGroup(const AlignedGroup& group, const ById& of_a, PartsOfB& parts);

  const Alignment* alignment_ = nullptr;
  ById of_b_;
  std::vector<RecordPair> pairs_;
  std::vector<LoneRecord> only_a_, only_b_;
  std::deque<FusedPair> fused_;  // what pairs of groups, and answers about them, point to
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_PAIRED_STEP_H_
