#include "server/query/compare/sequence_alignment.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string_view>

#include "server/query/compare/alignment.h"

namespace statcollect::query {
namespace {

constexpr double kSameKind = 0.6, kSameDepth = 0.15, kNeighbourBefore = 0.15,
                 kNeighbourBehind = 0.1;
constexpr double kConfidenceMin = 0.7;
constexpr std::ptrdiff_t kNowhere = -1;

// An output in the order of execution, and its counterpart's place on the other side.
struct Output {
  const Observation* seen = nullptr;
  bool keeps_name = false;  // the other run uses its name
  std::ptrdiff_t partner = kNowhere;
  const std::string& name() const { return seen->def->key.name; }
};

// Names that a run uses, of whatever kind.
std::set<std::string_view> NamesOf(const RankCatalogue& catalogue) {
  std::set<std::string_view> names;
  for (const TensorDef& def : catalogue.activations) names.insert(def.key.name);
  return names;
}

std::vector<Output> OutputsOf(const StepData& data, const std::set<std::string_view>& others) {
  std::vector<Output> outputs;
  for (const Observation& seen : data.observations) {
    const TensorKey& key = seen.def->key;
    if (key.kind == Kind::kOutput && key.mode == Mode::kTrain && key.micro_batch == 0 &&
        key.call == 0)
      outputs.push_back({.seen = &seen, .keeps_name = others.contains(key.name)});
  }
  return outputs;
}

bool SameKind(const Output& a, const Output& b) {
  const Layout &x = *a.seen->layout, &y = *b.seen->layout;
  const bool shapes = x.Has(Statistic::kShape) && y.Has(Statistic::kShape);
  return !a.seen->def->class_name.empty() && a.seen->def->class_name == b.seen->def->class_name &&
         shapes && x.shape == y.shape;
}

bool SameDepth(const Output& a, const Output& b) {
  return a.seen->def->depth == b.seen->def->depth;
}

// Places of what has no counterpart, by the place on B's side of the last matched output before it.
using Gaps = std::map<std::ptrdiff_t, std::vector<std::size_t>>;

Gaps GapsOf(const std::vector<Output>& outputs, bool of_a) {
  Gaps gaps;
  std::ptrdiff_t anchor = kNowhere;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].partner == kNowhere) {
      gaps[anchor].push_back(i);
    } else {
      anchor = of_a ? outputs[i].partner : static_cast<std::ptrdiff_t>(i);
    }
  }
  return gaps;
}

// The common subsequence with the most pairs, and among those with the most of one depth.
class Subsequence {
 public:
  Subsequence(std::span<const std::size_t> a, std::span<const std::size_t> b,
              std::vector<Output>& outputs_a, std::vector<Output>& outputs_b)
      : a_(a),
        b_(b),
        outputs_a_(outputs_a),
        outputs_b_(outputs_b),
        best_((a.size() + 1) * (b.size() + 1), 0) {}

  void Match() {
    for (std::size_t i = a_.size(); i-- > 0;) {
      for (std::size_t j = b_.size(); j-- > 0;)
        At(i, j) = std::max({At(i + 1, j), At(i, j + 1), At(i + 1, j + 1) + Score(i, j)});
    }
    for (std::size_t i = 0, j = 0; i < a_.size() && j < b_.size();) {
      const std::uint32_t score = Score(i, j);
      if (score > 0 && At(i, j) == At(i + 1, j + 1) + score) {
        outputs_a_[a_[i]].partner = static_cast<std::ptrdiff_t>(b_[j]);
        outputs_b_[b_[j]].partner = static_cast<std::ptrdiff_t>(a_[i]);
        ++i, ++j;
      } else if (At(i, j) == At(i + 1, j)) {
        ++i;
      } else {
        ++j;
      }
    }
  }

 private:
  std::uint32_t& At(std::size_t i, std::size_t j) { return best_[i * (b_.size() + 1) + j]; }
  std::uint32_t Score(std::size_t i, std::size_t j) const {
    const Output &a = outputs_a_[a_[i]], &b = outputs_b_[b_[j]];
    if ((a.keeps_name || b.keeps_name) && a.name() != b.name()) return 0;
    return SameKind(a, b) ? (SameDepth(a, b) ? 1001 : 1000) : 0;
  }

  const std::span<const std::size_t> a_, b_;
  std::vector<Output>& outputs_a_;
  std::vector<Output>& outputs_b_;
  std::vector<std::uint32_t> best_;
};

double ConfidenceOf(const std::vector<Output>& a, const std::vector<Output>& b, std::size_t i) {
  const auto j = static_cast<std::size_t>(a[i].partner);
  double confidence = kSameKind;
  if (SameDepth(a[i], b[j])) confidence += kSameDepth;
  const bool first = i == 0 && j == 0, last = i + 1 == a.size() && j + 1 == b.size();
  if (first || (i > 0 && j > 0 && a[i - 1].partner == static_cast<std::ptrdiff_t>(j - 1)))
    confidence += kNeighbourBefore;
  if (last || (i + 1 < a.size() && j + 1 < b.size() &&
               a[i + 1].partner == static_cast<std::ptrdiff_t>(j + 1)))
    confidence += kNeighbourBehind;
  return confidence;
}

}  // namespace

std::vector<OrderMatch> AlignBySequence(const StepData& of_a, const StepData& of_b,
                                        const Alignment& alignment) {
  std::vector<Output> a = OutputsOf(of_a, NamesOf(alignment.b())),
                      b = OutputsOf(of_b, NamesOf(alignment.a()));
  std::map<std::uint32_t, std::size_t> places_b;
  for (std::size_t i = 0; i < b.size(); ++i) places_b[b[i].seen->def->id] = i;
  std::vector<bool> known(a.size(), false);
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto found = places_b.find(alignment.b_of(a[i].seen->def->id));
    if (found == places_b.end()) continue;
    known[i] = true;
    a[i].partner = static_cast<std::ptrdiff_t>(found->second);
    b[found->second].partner = static_cast<std::ptrdiff_t>(i);
  }
  const Gaps gaps_a = GapsOf(a, /*of_a=*/true), gaps_b = GapsOf(b, /*of_a=*/false);
  for (const auto& [anchor, left_a] : gaps_a) {
    const auto left_b = gaps_b.find(anchor);
    if (left_b == gaps_b.end() || left_a.size() * left_b->second.size() > kAlignmentCellsMax)
      continue;
    Subsequence(left_a, left_b->second, a, b).Match();
  }
  std::vector<OrderMatch> matches;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (known[i] || a[i].partner == kNowhere) continue;
    const double confidence = ConfidenceOf(a, b, i);
    if (confidence < kConfidenceMin) continue;
    const TensorKey &x = a[i].seen->def->key,
                    &y = b[static_cast<std::size_t>(a[i].partner)].seen->def->key;
    matches.push_back({x.name, x.output_path, y.name, y.output_path, confidence});
  }
  return matches;
}

}  // namespace statcollect::query
