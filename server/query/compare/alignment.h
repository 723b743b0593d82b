// Matches activations of run B with those of run A; docs/divergence.md has the rules.
#ifndef STATCOLLECT_SERVER_QUERY_COMPARE_ALIGNMENT_H_
#define STATCOLLECT_SERVER_QUERY_COMPARE_ALIGNMENT_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/status.h"
#include "common/thread_annotations.h"
#include "server/query/compare/name_map.h"
#include "server/query/compare/sequence_alignment.h"
#include "server/query/reports.h"
#include "server/query/run_view.h"

namespace statcollect::query {

// Properties of an activation that a scan needs, looked up once.
struct ActivationTraits {
  Stage stage = Stage::kUnspecified;
  bool wanted = false;   // its kind was requested
  bool grouped = false;  // part of a group, or left out by the map; not compared by itself
};

// Activations that match only together (the parts of a fused or split module), or whose elements
// lie at other places in the two runs. By id.
struct AlignedGroup {
  std::vector<std::uint32_t> a, b;
  NameRelation relation;
};

// One rank of two launches. Immutable except for the marks. Definitions are borrowed.
class Alignment {
 public:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  struct Options {
    std::array<bool, kKindCount> wanted{};  // kinds
    const NameMap* names = nullptr;         // the user's map; may be null

    // All kinds but operators, which only zooms compare; without a map: for runs of one training.
    static Options OfEveryKind() {
      Options options;
      options.wanted.fill(true);
      options.wanted[static_cast<std::size_t>(Kind::kOperator)] = false;
      return options;
    }
  };

  // `by_order`: matches for activations that identity and names leave unmatched.
  Alignment(const RankCatalogue& a, const RankCatalogue& b, const Options& options,
            const std::vector<OrderMatch>& by_order = {});

  const RankCatalogue& a() const { return a_; }
  const RankCatalogue& b() const { return b_; }
  std::uint32_t b_of(std::uint32_t id_a) const { return b_of_a_[id_a]; }  // kNone: no counterpart
  std::uint32_t a_of(std::uint32_t id_b) const { return a_of_b_[id_b]; }
  const ActivationTraits& traits_a(std::uint32_t id) const { return traits_a_[id]; }
  const ActivationTraits& traits_b(std::uint32_t id) const { return traits_b_[id]; }
  const std::vector<AlignedGroup>& groups() const { return groups_; }
  // The group whose first part of A this is; null: none.
  const AlignedGroup* GroupAt(std::uint32_t id_a) const {
    const auto found = group_at_.find(id_a);
    return found == group_at_.end() ? nullptr : &groups_[found->second];
  }
  // Equal definitions and layouts, id for id, and all requested: blocks with equal digests hold
  // equal records.
  bool same_ids() const { return same_ids_; }
  // Whether both sides have requested activations without a counterpart.
  bool IsOpenOnBothSides() const;
  // Names that the map leaves out, of each run.
  const std::set<std::string>& left_out_a() const { return left_out_a_; }
  const std::set<std::string>& left_out_b() const { return left_out_b_; }
  // Matches between different names.
  const std::vector<AlignedNames>& renamed() const { return renamed_; }

  // Marks of A's activations, for the report. Thread-safe.
  enum Mark : std::uint8_t { kCompared = 1, kDiverged = 2, kMissingSeen = 4, kOtherDType = 8 };
  void MarkA(std::uint32_t id, Mark mark) const { Set(marks_a_[id], mark); }
  void MarkB(std::uint32_t id, Mark mark) const { Set(marks_b_[id], mark); }
  bool HasA(std::uint32_t id, Mark mark) const {
    return (marks_a_[id].load(std::memory_order_relaxed) & mark) != 0;
  }
  bool HasB(std::uint32_t id, Mark mark) const {
    return (marks_b_[id].load(std::memory_order_relaxed) & mark) != 0;
  }

  // The content of blocks with the same first activation and number of records (and, if merged, the
  // same records), remembered from the first such block, so that equal blocks need not be decoded.
  // Thread-safe.
  struct Content {
    std::uint32_t weights = 0, batches = 0;  // records of these stages
  };
  std::optional<Content> Known(const BlockHead& head) const;
  void Remember(const BlockHead& head, const Content& content) const;

 private:
  static void Set(std::atomic<std::uint8_t>& marks, Mark mark) {
    if ((marks.load(std::memory_order_relaxed) & mark) == 0)
      marks.fetch_or(mark, std::memory_order_relaxed);
  }
  void MatchByIdentity();
  void MatchByNames(const NameMap& names);
  void Match(AlignedGroup group);
  void MatchByOrder(const std::vector<OrderMatch>& by_order);
  void NoteRenamed(const AlignedNames& names);
  void Match(std::uint32_t id_a, std::uint32_t id_b);

  const RankCatalogue& a_;
  const RankCatalogue& b_;
  std::vector<std::uint32_t> b_of_a_, a_of_b_;
  std::vector<ActivationTraits> traits_a_, traits_b_;
  std::vector<AlignedGroup> groups_;
  std::unordered_map<std::uint32_t, std::size_t> group_at_;  // by A's first part
  std::set<std::string> left_out_a_, left_out_b_;
  std::vector<AlignedNames> renamed_;
  bool same_ids_ = false;
  mutable std::vector<std::atomic<std::uint8_t>> marks_a_, marks_b_;
  mutable Mutex mutex_;
  // By first activation, records, and which they are.
  mutable std::map<std::tuple<std::uint32_t, std::size_t, std::uint64_t>, Content> known_
      STATCOLLECT_GUARDED_BY(mutex_);
};

// Makes each alignment once. Thread-safe; the alignments live as long as it does.
class Aligner {
 public:
  explicit Aligner(Alignment::Options options) : options_(options) {}
  // `place` identifies the rank, in the order of all().
  const Alignment& For(std::size_t place, const RankCatalogue& a, const RankCatalogue& b);
  // Makes the alignments of the place again with these matches; call it before any of them is used.
  void SetByOrder(std::size_t place, std::vector<OrderMatch> by_order);

  struct Entry {
    std::size_t place = 0;
    const Alignment* alignment = nullptr;
  };
  std::vector<Entry> all() const;

 private:
  const Alignment::Options options_;
  mutable Mutex mutex_;
  std::map<std::size_t, std::vector<OrderMatch>>
      by_order_;  // by place; constant once alignments are used
  std::map<std::tuple<std::size_t, const RankCatalogue*, const RankCatalogue*>,
           std::unique_ptr<Alignment>>
      alignments_;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_ALIGNMENT_H_
