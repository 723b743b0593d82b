// Which activation of run B stands for which of run A. docs/divergence.md says how it is decided.
#ifndef STATCOLLECT_SERVER_QUERY_COMPARE_ALIGNMENT_H_
#define STATCOLLECT_SERVER_QUERY_COMPARE_ALIGNMENT_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/status.h"
#include "common/thread_annotations.h"
#include "server/query/compare/name_map.h"
#include "server/query/compare/sequence_alignment.h"
#include "server/query/reports.h"
#include "server/query/run_view.h"

namespace statcollect::query {

// What a scan asks of an activation, looked up once.
struct ActivationTraits {
  Stage stage = Stage::kUnspecified;
  bool wanted = false;   // its kind is asked for
  bool grouped = false;  // compared together with others: it is in a group, not matched by itself
};

// Activations that stand for one another only together: the parts of a fused or split module. Ids.
struct AlignedGroup {
  std::vector<std::uint32_t> a, b;
};

// Of one rank of two launches. Immutable but for the marks. Definitions are borrowed.
class Alignment {
 public:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  struct Options {
    std::array<bool, kKindCount> wanted{};  // kinds
    const NameMap* names = nullptr;         // the user's; may be null
  };

  // `by_order`: what stands for what is left after identity and names.
  Alignment(const RankCatalogue& a, const RankCatalogue& b, const Options& options,
            const std::vector<OrderMatch>& by_order = {});

  const RankCatalogue& a() const { return a_; }
  const RankCatalogue& b() const { return b_; }
  std::uint32_t b_of(std::uint32_t id_a) const { return b_of_a_[id_a]; }  // kNone: no counterpart
  std::uint32_t a_of(std::uint32_t id_b) const { return a_of_b_[id_b]; }
  const ActivationTraits& traits_a(std::uint32_t id) const { return traits_a_[id]; }
  const ActivationTraits& traits_b(std::uint32_t id) const { return traits_b_[id]; }
  const std::vector<AlignedGroup>& groups() const { return groups_; }
  // Equal definitions and layouts, id for id, all wanted: blocks of equal digests hold equal records.
  bool same_ids() const { return same_ids_; }
  // Whether both sides have wanted activations without counterpart.
  bool IsOpenOnBothSides() const;
  // Names that do not stand for themselves.
  const std::vector<AlignedNames>& renamed() const { return renamed_; }

  // Marks of A's activations, for the report. Thread-safe.
  enum Mark : std::uint8_t { kCompared = 1, kDiverged = 2, kMissingSeen = 4 };
  void MarkA(std::uint32_t id, Mark mark) const { Set(marks_a_[id], mark); }
  void MarkB(std::uint32_t id, Mark mark) const { Set(marks_b_[id], mark); }
  bool HasA(std::uint32_t id, Mark mark) const {
    return (marks_a_[id].load(std::memory_order_relaxed) & mark) != 0;
  }
  bool HasB(std::uint32_t id, Mark mark) const {
    return (marks_b_[id].load(std::memory_order_relaxed) & mark) != 0;
  }

  // What is in blocks that begin with an activation and have so many records: remembered from the first such
  // block, so that equal blocks need not be decoded. Thread-safe.
  struct Content {
    bool weights = false, batches = false;  // records of these stages
  };
  std::optional<Content> Known(std::uint32_t first, std::size_t records) const;
  void Remember(std::uint32_t first, std::size_t records, const Content& content) const;

 private:
  static void Set(std::atomic<std::uint8_t>& marks, Mark mark) {
    if ((marks.load(std::memory_order_relaxed) & mark) == 0) marks.fetch_or(mark, std::memory_order_relaxed);
  }
  void MatchByIdentity();
  void MatchByNames(const NameMap& names);
  void MatchByOrder(const std::vector<OrderMatch>& by_order);
  void NoteRenamed(const AlignedNames& names);
  void Match(std::uint32_t id_a, std::uint32_t id_b);

  const RankCatalogue& a_;
  const RankCatalogue& b_;
  std::vector<std::uint32_t> b_of_a_, a_of_b_;
  std::vector<ActivationTraits> traits_a_, traits_b_;
  std::vector<AlignedGroup> groups_;
  std::vector<AlignedNames> renamed_;
  bool same_ids_ = false;
  mutable std::vector<std::atomic<std::uint8_t>> marks_a_, marks_b_;
  mutable Mutex mutex_;
  mutable std::map<std::pair<std::uint32_t, std::size_t>, Content> known_ STATCOLLECT_GUARDED_BY(mutex_);
};

// Makes each alignment once. Thread-safe; what it returns lives as long as it does.
class Aligner {
 public:
  explicit Aligner(Alignment::Options options) : options_(options) {}
  // `place`: tells ranks apart, in the order of all().
  const Alignment& For(std::size_t place, const RankCatalogue& a, const RankCatalogue& b);
  // Alignments of the place are made anew with it; to be called before any of them is used.
  void SetByOrder(std::size_t place, std::vector<OrderMatch> by_order);

  struct Entry {
    std::size_t place = 0;
    const Alignment* alignment = nullptr;
  };
  std::vector<Entry> all() const;

 private:
  const Alignment::Options options_;
  mutable Mutex mutex_;
  std::map<std::size_t, std::vector<OrderMatch>> by_order_;  // by place; constant once alignments are used
  std::map<std::tuple<std::size_t, const RankCatalogue*, const RankCatalogue*>, std::unique_ptr<Alignment>>
      alignments_;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_ALIGNMENT_H_
