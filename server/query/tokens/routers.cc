#include "server/query/tokens/routers.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <numbers>
#include <set>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "server/query/compare/name_map.h"
#include "server/query/tokens/paired_taps.h"
#include "server/query/tokens/token_table.h"

namespace statcollect::query {
namespace {

// Of an expert's tokens: that many of them, and no others, differ if the expert does.
constexpr double kMostOfExpert = 0.5;
constexpr std::uint64_t kTokensOfExpertLeast = 2;
constexpr std::size_t kExpertsMax = std::size_t{1} << 16;  // TokenChoice::experts

double LargerNorm(const TokenPair& pair) {
  return static_cast<double>(std::max(pair.a->stats.l2, pair.b->stats.l2));
}

// What has been seen so far.
struct SoFar {
  double largest = 0;   // distance at the taps of the step
  bool begun = false;   // something differs by more than rounding, in this step or an earlier one
  bool dtypes = false;  // taps have other dtypes
};

// A router in a step.
struct InStep {
  RouterDiff diff;
  std::vector<std::pair<const TokenChoice*, const TokenChoice*>> choices;  // by key
  std::set<std::uint64_t> flipped;  // keys of tokens with other experts
  // The same, and of those at near ties: the program may have chosen by what it rounded from the
  // logits.
  std::set<std::uint64_t> elsewhere;
  std::size_t experts = 0;  // columns of the logits
};

struct ComparedRouter {
  const TokenRouter *a = nullptr, *b = nullptr;
  std::string layer;  // the tap of the innermost module around it; empty: none
  std::map<std::uint64_t, InStep> steps;
};

// The longest name of a tap that the module lies in.
std::string TapAround(const TokenTable& table, const std::string& module) {
  for (std::size_t dot = module.rfind('.'); dot != std::string::npos && dot > 0;
       dot = module.rfind('.', dot - 1)) {
    if (table.Find(module.substr(0, dot)) != nullptr) return module.substr(0, dot);
  }
  return {};
}

const TokenRouter* CounterpartOf(const NameMap& names, const TokenRouter& router,
                                 const TokenTable& b) {
  const auto find = [&](const std::string& name) {
    const auto at = std::find_if(b.routers().begin(), b.routers().end(),
                                 [&](const TokenRouter& one) { return one.name == name; });
    return at == b.routers().end() ? nullptr : &*at;
  };
  std::size_t from = 0;
  while (const auto found = names.Find(router.name, from)) {
    const TokenRouter* other =
        found->a.size() == 1 && found->b.size() == 1 ? find(found->b[0]) : nullptr;
    if (other != nullptr) return other;
    from = found->rule + 1;
  }
  return find(router.name);
}

std::uint64_t ExpertsInBoth(const TokenChoice& a, const TokenChoice& b) {
  std::vector<std::uint16_t> both;
  std::set_intersection(a.experts.begin(), a.experts.end(), b.experts.begin(), b.experts.end(),
                        std::back_inserter(both));
  return both.size();
}

void CountLoad(const TokenChoice& choice, std::vector<std::uint64_t>& load) {
  for (const std::uint16_t expert : choice.experts) {
    if (load.size() <= expert) load.resize(expert + std::size_t{1});
    ++load[expert];
  }
}

class RouterComparer {
 public:
  RouterComparer(const NameMap& names, const TokenTable& a, const TokenTable& b, TapNoise noise)
      : names_(names), a_(a), b_(b), noise_(std::move(noise)) {}

  Result<RouterAnswer> Run(const std::stop_token& stop) {
    PairRouters();
    // What a step leaves behind, in weights and state: as much as its last tap has.
    SoFar so_far;
    double left = 0;
    for (const auto& [step, taps] : RowsOfSteps()) {
      so_far.largest = left;
      for (const auto& [pair, rows] : taps) {
        if (stop.stop_requested()) return Status(Code::kCancelled, "diff: cancelled");
        left = Judge(pair, step, rows, so_far);
      }
    }
    RouterAnswer answer;
    for (ComparedRouter& router : routers_) Conclude(router, answer);
    return answer;
  }

 private:
  void PairRouters() {
    for (const TokenRouter& of_a : a_.routers()) {
      const TokenRouter* const of_b = CounterpartOf(names_, of_a, b_);
      if (of_b == nullptr) continue;
      ComparedRouter router{.a = &of_a, .b = of_b, .layer = TapAround(a_, of_a.name), .steps = {}};
      PairChoices(router);
      routers_.push_back(std::move(router));
    }
  }

  static void PairChoices(ComparedRouter& router) {
    const auto place = [](const TokenChoice& one) { return std::tie(one.key, one.step); };
    auto at_b = router.b->choices.begin();
    for (const TokenChoice& of_a : router.a->choices) {
      while (at_b != router.b->choices.end() && place(*at_b) < place(of_a)) ++at_b;
      if (at_b == router.b->choices.end()) break;
      if (place(*at_b) == place(of_a)) Count(of_a, *at_b, router.steps[of_a.step]);
    }
    for (auto& [step, at] : router.steps) {
      RouterDiff& diff = at.diff;
      diff.router = router.a->name;
      if (router.b->name != router.a->name) diff.router_b = router.b->name;
      diff.step = step;
      diff.layer = router.layer;
      diff.flips = at.flipped.size();
    }
  }
  static void Count(const TokenChoice& a, const TokenChoice& b, InStep& to) {
    to.choices.emplace_back(&a, &b);
    RouterDiff& diff = to.diff;
    ++diff.tokens;
    diff.chosen = std::max(
        diff.chosen, static_cast<std::uint32_t>(std::max(a.experts.size(), b.experts.size())));
    diff.agreeing += ExpertsInBoth(a, b);
    if (a.experts == b.experts) return;
    to.flipped.insert(a.key);
    to.elsewhere.insert(a.key);
  }

  // By step, the rows of its taps in A's order.
  using Steps = std::map<std::uint64_t, std::vector<std::pair<TapPair, std::vector<TokenPair>>>>;
  Steps RowsOfSteps() const {
    Steps steps;
    for (const TapPair& taps : PairTaps(names_, a_, b_).pairs) {
      for (const TokenPair& pair : PairInSteps(*taps.a, *taps.b)) {
        auto& of_step = steps[pair.a->step];
        if (of_step.empty() || of_step.back().first.a != taps.a) of_step.push_back({taps, {}});
        of_step.back().second.push_back(pair);
      }
    }
    return steps;
  }

  // Returns the root mean square of the distances.
  double Judge(const TapPair& taps, std::uint64_t step, const std::vector<TokenPair>& rows,
               SoFar& so_far) {
    const double limit = LimitOfRounding(taps, noise_.At(*taps.a), so_far.largest);
    const bool same_width = taps.a->columns == taps.b->columns;
    std::vector<double> apart;
    double largest = 0, squares = 0;
    for (const TokenPair& pair : rows) {
      const bool equal =
          pair.a->dtype == pair.b->dtype && same_width && pair.a->stats.hash == pair.b->stats.hash;
      apart.push_back(equal ? 0 : TokenDistance(pair.a->stats, pair.b->stats, taps.a->columns));
      if (!std::isfinite(apart.back())) continue;
      largest = std::max(largest, apart.back());
      squares += apart.back() * apart.back();
    }
    std::set<std::uint64_t> elsewhere;
    bool is_router = false;
    for (ComparedRouter& router : routers_) {
      const auto at = router.steps.find(step);
      if (at == router.steps.end()) continue;
      if (router.a->name == taps.a->name) {
        JudgeLogits(taps, rows, apart, limit, so_far, at->second);
        is_router = true;
      } else if (router.layer == taps.a->name) {
        JudgeBehind(rows, apart, limit, so_far, at->second);
        elsewhere.insert(at->second.elsewhere.begin(), at->second.elsewhere.end());
      }
    }
    for (std::size_t i = 0; i < rows.size() && !is_router; ++i)
      so_far.begun = so_far.begun || (apart[i] > limit && !elsewhere.contains(rows[i].a->key));
    for (const TokenPair& pair : rows)
      so_far.dtypes = so_far.dtypes || pair.a->dtype != pair.b->dtype;
    so_far.largest = std::max(so_far.largest, largest);
    return rows.empty() ? 0 : std::sqrt(squares / static_cast<double>(rows.size()));
  }

  // The router itself.
  static void JudgeLogits(const TapPair& taps, const std::vector<TokenPair>& rows,
                          const std::vector<double>& apart, double limit, SoFar& so_far,
                          InStep& at) {
    RouterDiff& diff = at.diff;
    const bool before = so_far.begun;
    diff.dtype_a = rows.front().a->dtype;  // there are no taps without rows
    diff.dtype_b = rows.front().b->dtype;
    at.experts = std::min<std::size_t>(taps.a->columns, kExpertsMax);
    diff.distance_limit = limit;
    diff.distance = *std::max_element(apart.begin(), apart.end());
    diff.margin_limit = std::numbers::sqrt2 * limit;
    std::unordered_map<std::uint64_t, double> norms;
    for (const TokenPair& pair : rows) norms[pair.a->key] = LargerNorm(pair);
    for (const auto& [a, b] : at.choices) {
      const bool flipped = at.flipped.contains(a->key);
      const auto norm = norms.find(a->key);
      if (norm == norms.end() || a->margin < 0 || b->margin < 0 || !(norm->second > 0)) {
        // The router's own rule is not known: as near as its logits.
        diff.near_ties += flipped && *diff.distance <= limit ? 1 : 0;
        continue;
      }
      const double larger = static_cast<double>(std::max(a->margin, b->margin)) / norm->second;
      const double both =
          (static_cast<double>(a->margin) + static_cast<double>(b->margin)) / norm->second;
      const bool near = both <= *diff.margin_limit;
      if (near) at.elsewhere.insert(a->key);
      if (!flipped) continue;
      diff.margin = std::max(diff.margin.value_or(0), larger);
      diff.near_ties += near ? 1 : 0;
    }
    const bool other_dtype = diff.dtype_a != diff.dtype_b && !so_far.dtypes && *diff.distance > 0;
    if (*diff.distance > limit || other_dtype || diff.near_ties < diff.flips) {
      diff.finding = before ? RouterFinding::kBefore : RouterFinding::kRouter;
      so_far.begun = true;
    } else if (diff.flips > 0) {
      diff.finding = before ? RouterFinding::kBefore : RouterFinding::kRounding;
    }
  }

  // Behind its experts.
  static void JudgeBehind(const std::vector<TokenPair>& rows, const std::vector<double>& apart,
                          double limit, const SoFar& so_far, InStep& at) {
    RouterDiff& diff = at.diff;
    double flipped = 0, all = 0;
    std::set<std::uint64_t> others;  // keys
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::uint64_t key = rows[i].a->key;
      const double difference = apart[i] * LargerNorm(rows[i]);
      if (std::isfinite(difference)) {
        all += difference * difference;
        if (at.elsewhere.contains(key)) flipped += difference * difference;
      }
      if (apart[i] > limit && !at.elsewhere.contains(key)) others.insert(key);
    }
    if (all > 0) diff.explained = flipped / all;
    diff.apart = others.size();
    if (others.empty() || so_far.begun) {
      if (so_far.begun && diff.finding == RouterFinding::kSame && all > 0)
        diff.finding = RouterFinding::kBefore;
      return;
    }
    diff.finding = RouterFinding::kTokens;
    NameExpert(others, at);
  }

  // The expert of all of these tokens, if it may be what differs.
  static void NameExpert(const std::set<std::uint64_t>& others, InStep& at) {
    std::vector<std::uint64_t> of_these, of_all;  // tokens with the same experts, by expert
    for (const auto& [a, b] : at.choices) {
      if (at.elsewhere.contains(a->key)) continue;
      CountLoad(*a, of_all);
      if (others.contains(a->key)) CountLoad(*a, of_these);
    }
    std::vector<std::uint32_t> candidates;
    for (std::uint32_t expert = 0; expert < of_these.size(); ++expert)
      if (of_these[expert] == others.size()) candidates.push_back(expert);
    const auto fewest =
        std::min_element(candidates.begin(), candidates.end(),
                         [&](std::uint32_t x, std::uint32_t y) { return of_all[x] < of_all[y]; });
    if (fewest == candidates.end()) return;
    const std::uint64_t tokens = of_all[*fewest];
    const bool most =
        others.size() >= kTokensOfExpertLeast &&
        static_cast<double>(others.size()) >= kMostOfExpert * static_cast<double>(tokens);
    if (!most && candidates.size() > 1) return;
    at.diff.expert = *fewest;
    at.diff.expert_tokens = tokens;
    if (most) at.diff.finding = RouterFinding::kExpert;
  }

  static int RankOf(RouterFinding finding) {
    return finding > RouterFinding::kBefore ? static_cast<int>(RouterFinding::kTokens)
                                            : static_cast<int>(finding);
  }
  // Of an expert's tokens, those that went elsewhere or stand at a near tie.
  static double LargestShare(const InStep& at) {
    std::vector<std::uint64_t> tokens, others;
    for (const auto& [a, b] : at.choices) {
      for (const TokenChoice* choice : {a, b}) {
        CountLoad(*choice, tokens);
        if (at.elsewhere.contains(a->key)) CountLoad(*choice, others);
      }
    }
    double largest = 0;
    for (std::size_t expert = 0; expert < others.size(); ++expert) {
      if (others[expert] > 0)
        largest = std::max(
            largest, static_cast<double>(others[expert]) / static_cast<double>(tokens[expert]));
    }
    return largest;
  }
  static void Conclude(ComparedRouter& router, RouterAnswer& answer) {
    InStep* chosen = nullptr;
    for (auto& [step, at] : router.steps) {
      // Of a router without logits nothing else is known.
      if (at.diff.finding == RouterFinding::kSame && at.diff.flips > 0)
        at.diff.finding = RouterFinding::kRouter;
      const int of_this = RankOf(at.diff.finding);
      if (chosen == nullptr || of_this > RankOf(chosen->diff.finding) ||
          (of_this == 0 && chosen->diff.finding == RouterFinding::kSame))
        chosen = &at;
      const bool other_tokens = at.diff.finding == RouterFinding::kRounding;
      const bool rounded =
          at.diff.finding == RouterFinding::kSame && at.diff.distance.value_or(0) > 0;
      if (other_tokens || rounded) {
        answer.near_ties[step].push_back({.router = router.a->name,
                                          .within = router.layer,
                                          .share = other_tokens ? LargestShare(at) : 0,
                                          .choices = at.diff.tokens * at.diff.chosen});
      }
    }
    if (chosen == nullptr) return;
    RouterDiff& diff = chosen->diff;
    for (const auto& [a, b] : chosen->choices) {
      CountLoad(*a, diff.load_a);
      CountLoad(*b, diff.load_b);
    }
    diff.load_a.resize(std::max({diff.load_a.size(), diff.load_b.size(), chosen->experts}));
    diff.load_b.resize(diff.load_a.size());
    answer.routers.push_back(std::move(diff));
  }

  const NameMap& names_;
  const TokenTable &a_, &b_;
  const TapNoise noise_;
  std::vector<ComparedRouter> routers_;
};

}  // namespace

Result<RouterAnswer> CompareRouters(RecordReader& store, const RouterQuestion& question,
                                    const std::stop_token& stop) {
  for (const std::string* run : {&question.run_a, &question.run_b}) {
    STATCOLLECT_ASSIGN_OR_RETURN(const auto choices, TokenTable::Read(store, *run, question.steps,
                                                                      TokenTable::What::kRouters));
    if (choices.routers().empty()) return RouterAnswer();
  }
  STATCOLLECT_ASSIGN_OR_RETURN(const auto names, NameMap::Parse(question.map));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto a,
                               TokenTable::Read(store, question.run_a, question.steps));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto b,
                               TokenTable::Read(store, question.run_b, question.steps));
  STATCOLLECT_ASSIGN_OR_RETURN(auto noise,
                               TapNoise::Measure(store, a, question.noise, question.steps));
  return RouterComparer(names, a, b, std::move(noise)).Run(stop);
}

}  // namespace statcollect::query
