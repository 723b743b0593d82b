#include "server/query/answers/propose_map.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include <re2/re2.h>

#include "common/names.h"
#include "server/query/answers/message_parts.h"
#include "server/query/compare/distance.h"
#include "server/query/compare/name_map.h"
#include "server/query/logical/choose.h"
#include "server/query/run_view.h"

namespace statcollect::query {
namespace {

constexpr std::size_t kStepsCompared = 2;
constexpr double kNear = 0.1;               // distance up to which tensors may be the same one
constexpr double kClearly = 3;              // times nearer than the next one
constexpr std::size_t kDistancesMax = 256;  // for each name
constexpr int kListedMax = 1000;            // names without a counterpart, in the map's comments

// One name of a run and its records, in the order of steps, kinds and calls.
struct Named {
  std::string name;
  std::uint32_t defined = 0;  // the first definition
  std::vector<Observation> records;
  std::optional<std::size_t> pair;  // index of its counterpart

  const Observation& first() const { return records.front(); }
};

// What a run holds under names that the other one lacks.
struct Side {
  std::vector<StepData> steps;
  std::vector<Named> names;  // in the order of definition
};

std::uint64_t Mix(std::uint64_t hash, std::uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15u + (hash << 6) + (hash >> 2);
  return hash * 0xff51afd7ed558ccdu;
}

std::uint64_t ContentOf(const Observation& record, std::uint64_t hash) {
  hash = Mix(hash, static_cast<std::uint64_t>(record.def->key.kind));
  hash = Mix(hash, static_cast<std::uint64_t>(record.layout->dtype));
  for (const std::int64_t size : record.layout->shape)
    hash = Mix(hash, static_cast<std::uint64_t>(size));
  return Mix(hash, record.stats->hash);
}

bool HasHash(const Observation& record) {
  return record.layout->Trusts(Statistic::kHash) && record.layout->Trusts(Statistic::kShape);
}

// Of all records, or of the first only; absent: there is no hash.
std::optional<std::uint64_t> KeyOf(const Named& named, bool all) {
  std::uint64_t key = 0;
  for (const Observation& record : named.records) {
    if (!HasHash(record)) return std::nullopt;
    key = ContentOf(record, key);
    if (!all) break;
  }
  return key;
}

bool IsConstant(const Observation& record) {
  return record.stats->has_finite && record.stats->min == record.stats->max &&
         record.stats->numel > 1;
}

Side Gather(const RankCatalogue& catalogue, std::vector<StepData> steps,
            const std::set<std::string>& of_both) {
  Side side{.steps = std::move(steps), .names = {}};
  std::unordered_map<std::string, std::size_t> known;
  for (const TensorDef& def : catalogue.activations) {
    if (of_both.contains(def.key.name)) continue;
    if (known.try_emplace(def.key.name, side.names.size()).second)
      side.names.push_back({.name = def.key.name, .defined = def.id, .records = {}, .pair = {}});
  }
  for (const StepData& step : side.steps) {
    std::map<std::size_t, std::vector<Observation>> of_step;
    for (const Observation& seen : step.observations) {
      const auto found = known.find(seen.def->key.name);
      if (found != known.end()) of_step[found->second].push_back(seen);
    }
    for (auto& [index, records] : of_step) {
      const auto place = [](const Observation& seen) {
        const TensorKey& key = seen.def->key;  // weights as loaded come first
        return std::tuple(key.mode != Mode::kInit, key.kind, key.micro_batch, key.call, seen.order);
      };
      std::stable_sort(
          records.begin(), records.end(),
          [&](const Observation& x, const Observation& y) { return place(x) < place(y); });
      auto& all = side.names[index].records;
      all.insert(all.end(), records.begin(), records.end());
    }
  }
  std::erase_if(side.names, [](const Named& named) { return named.records.empty(); });
  return side;
}

// Why a name of A and one of B may be the same.
struct Proposed {
  double confidence = 0;
  const char* method = "";  // empty: there is no counterpart
  bool ambiguous = false;
  std::string reason;
  std::size_t of_b = 0;  // index of the name
};

class Proposer {
 public:
  Proposer(Side a, Side b) : a_(std::move(a)), b_(std::move(b)), reason_(a_.names.size()) {}

  Status Run(const std::stop_token& stop) {
    MatchByHash(/*all=*/true, 1.0, "equal bits in all records");
    MatchByHash(/*all=*/false, 0.95, "equal bits at first, later values differ");
    STATCOLLECT_RETURN_IF_ERROR(MatchByDistance(stop));
    for (const bool all : {true, false}) {
      for (const bool by_class : {true, false}) MatchByOrder(all, by_class);
    }
    return Status::Ok();
  }

  void Fill(v1::ProposeMapResponse& out) const {
    std::vector<bool> named_b(b_.names.size(), false);
    for (std::size_t i = 0; i < a_.names.size(); ++i) {
      const Named& name = a_.names[i];
      const Proposed& why = reason_[i];
      if (*why.method == '\0') {
        out.add_only_a(name.name);
        continue;
      }
      named_b[why.of_b] = true;
      v1::ProposedName& one = *out.add_records();
      one.set_a(name.name);
      one.set_b(b_.names[why.of_b].name);
      one.set_confidence(why.confidence);
      one.set_method(why.method);
      one.set_ambiguous(why.ambiguous);
      one.set_reason(why.reason);
    }
    for (std::size_t j = 0; j < b_.names.size(); ++j) {
      if (!named_b[j]) out.add_only_b(b_.names[j].name);
    }
    if (cut_ > 0) {
      out.add_notes("of " + std::to_string(cut_) + " names only the " +
                    std::to_string(kDistancesMax) +
                    " likeliest tensors were compared: the others are too similar");
    }
  }

 private:
  using Groups =
      std::map<std::uint64_t, std::pair<std::vector<std::size_t>, std::vector<std::size_t>>>;

  // Names without a counterpart, by content.
  Groups GroupByHash(bool all) const {
    Groups groups;
    for (std::size_t i = 0; i < a_.names.size(); ++i) {
      const auto key = a_.names[i].pair ? std::nullopt : KeyOf(a_.names[i], all);
      if (key) groups[*key].first.push_back(i);
    }
    for (std::size_t j = 0; j < b_.names.size(); ++j) {
      const auto key = b_.names[j].pair ? std::nullopt : KeyOf(b_.names[j], all);
      if (key) groups[*key].second.push_back(j);
    }
    std::erase_if(groups, [](const auto& group) {
      return group.second.first.empty() || group.second.second.empty();
    });
    return groups;
  }

  void Pair(std::size_t i, std::size_t j, double confidence, const char* method,
            std::string reason) {
    a_.names[i].pair = j;
    b_.names[j].pair = i;
    reason_[i] = {
        .confidence = confidence, .method = method, .reason = std::move(reason), .of_b = j};
  }

  void MatchByHash(bool all, double confidence, const char* reason) {
    for (const auto& [key, group] : GroupByHash(all)) {
      const auto& [of_a, of_b] = group;
      if (of_a.size() == 1 && of_b.size() == 1)
        Pair(of_a.front(), of_b.front(), confidence, "hash", reason);
    }
  }

  // Of each name of A: the nearest of B and how far the next one is.
  struct Nearest {
    std::size_t at = 0;
    double distance = std::numeric_limits<double>::infinity();
    double next = std::numeric_limits<double>::infinity();
    std::size_t next_at = 0;
  };

  using Bucket = std::vector<std::pair<double, std::size_t>>;  // position, name; ascending

  // A coordinate whose difference is at most the L2 distance of two tensors: one direction of the
  // sketch, which tells tensors of equal norm apart, or the norm.
  static double PositionOf(const Observation& record) {
    if (record.sketch.empty()) return record.stats->l2;
    double sum = 0;
    for (const double part : record.sketch) sum += part;
    return sum / std::sqrt(static_cast<double>(record.sketch.size()));
  }

  Status MatchByDistance(const std::stop_token& stop) {
    std::map<std::tuple<Kind, std::vector<std::int64_t>, std::size_t>, Bucket> buckets;
    const auto key = [](const Observation& record) {
      return std::tuple(record.def->key.kind, record.layout->shape, record.sketch.size());
    };
    const auto measurable = [](const Observation& record) {
      return record.layout->Trusts(Statistic::kShape) && record.stats->has_finite &&
             !IsConstant(record) && std::isfinite(PositionOf(record));
    };
    for (std::size_t j = 0; j < b_.names.size(); ++j) {
      const Named& named = b_.names[j];
      if (!named.pair && measurable(named.first()))
        buckets[key(named.first())].emplace_back(PositionOf(named.first()), j);
    }
    for (auto& [of, bucket] : buckets) std::sort(bucket.begin(), bucket.end());
    std::vector<std::tuple<double, std::size_t, Nearest>> found;
    for (std::size_t i = 0; i < a_.names.size(); ++i) {
      if (stop.stop_requested()) return {Code::kCancelled, "map propose: cancelled"};
      const Named& named = a_.names[i];
      if (named.pair || !measurable(named.first())) continue;
      const auto bucket = buckets.find(key(named.first()));
      if (bucket == buckets.end()) continue;
      const Nearest nearest = Search(named.first(), bucket->second);
      if (nearest.distance <= kNear) found.emplace_back(nearest.distance, i, nearest);
    }
    std::sort(found.begin(), found.end(), [](const auto& x, const auto& y) {
      return std::pair(std::get<0>(x), std::get<1>(x)) < std::pair(std::get<0>(y), std::get<1>(y));
    });
    for (const auto& [distance, i, nearest] : found) Take(i, nearest);
    return Status::Ok();
  }

  void Take(std::size_t i, const Nearest& nearest) {
    const Named& b = b_.names[nearest.at];
    char text[64];
    (void)std::snprintf(text, sizeof text, "distance %.2g", nearest.distance);
    const bool sketched = !a_.names[i].first().sketch.empty() && !b.first().sketch.empty();
    const double confidence = !sketched ? 0.5 : nearest.distance < kNear / 100 ? 0.9 : 0.7;
    const bool clear = nearest.next > kClearly * nearest.distance && nearest.next > 0;
    if (!b.pair && clear)
      return Pair(i, nearest.at, confidence, "distance",
                  text + std::string(sketched ? "" : ", of statistics only"));
    const std::string other = b.pair ? a_.names[*b.pair].name : b_.names[nearest.next_at].name;
    reason_[i] = {.confidence = 0.2,
                  .method = "distance",
                  .ambiguous = true,
                  .reason = "ambiguous: " + std::string(text) + ", and " + Printable(other) +
                            (b.pair ? " is nearer to it" : " is about as near"),
                  .of_b = nearest.at};
  }

  // Positions bound the distance from below, so the search ends where they are further apart than
  // what was found.
  Nearest Search(const Observation& of, const Bucket& bucket) {
    Nearest nearest;
    const double own = PositionOf(of);
    // Of tensors that are near enough, none has a larger norm.
    const double norm = of.stats->l2 / (1 - kNear);
    auto up = std::lower_bound(bucket.begin(), bucket.end(), std::pair(own, std::size_t{0}));
    auto down = up;
    for (std::size_t tried = 0; up != bucket.end() || down != bucket.begin(); ++tried) {
      const auto gap = [&](double position) {
        const double apart = std::abs(position - own);
        return apart == 0 ? 0 : apart / norm;
      };
      const double above =
          up == bucket.end() ? std::numeric_limits<double>::infinity() : gap(up->first);
      const double below = down == bucket.begin() ? std::numeric_limits<double>::infinity()
                                                  : gap(std::prev(down)->first);
      if (std::min(above, below) > std::min({nearest.next, kClearly * nearest.distance, kNear}))
        break;
      if (tried == kDistancesMax) {
        ++cut_;
        break;
      }
      const std::size_t j = above <= below ? (up++)->second : (--down)->second;
      const double distance = Measure(of, b_.names[j].first()).value;
      if (distance < nearest.distance) {
        nearest.next = std::exchange(nearest.distance, distance);
        nearest.next_at = std::exchange(nearest.at, j);
      } else if (distance < nearest.next) {
        nearest.next = distance;
        nearest.next_at = j;
      }
    }
    return nearest;
  }

  // The gap between pairs that a name of A lies in, as the names of B on both sides of it; absent:
  // the pairs around it are not in the same order in B.
  struct Gap {
    std::size_t after = 0, before = 0;  // indexes of B plus one; `before` 0: up to the end
    auto operator<=>(const Gap&) const = default;
  };

  std::vector<std::optional<Gap>> GapsOfA() const {
    std::vector<std::optional<Gap>> gaps(a_.names.size());
    std::vector<std::size_t> next(a_.names.size() + 1, 0);
    for (std::size_t i = a_.names.size(); i-- > 0;)
      next[i] = a_.names[i].pair ? *a_.names[i].pair + 1 : next[i + 1];
    std::size_t last = 0;
    for (std::size_t i = 0; i < a_.names.size(); ++i) {
      if (a_.names[i].pair) last = *a_.names[i].pair + 1;
      if (!a_.names[i].pair && (next[i] == 0 || last < next[i])) gaps[i] = Gap{last, next[i]};
    }
    return gaps;
  }

  // Equal tensors: the only one of A in its gap, or the only one of its class and depth there,
  // belongs to the only one of B.
  void MatchByOrder(bool all, bool by_class) {
    const auto gaps = GapsOfA();
    const auto sort_of = [&](const Named& named) {
      const TensorDef& def = *named.first().def;
      return by_class ? std::pair(def.class_name, def.depth) : std::pair(std::string(), 0);
    };
    for (const auto& [key, group] : GroupByHash(all)) {
      const auto& [of_a, of_b] = group;
      std::map<std::pair<Gap, std::pair<std::string, int>>, std::size_t> of_a_there;
      for (const std::size_t i : of_a) {
        if (gaps[i]) ++of_a_there[{*gaps[i], sort_of(a_.names[i])}];
      }
      for (std::size_t n = 0; n < of_a.size(); ++n) {
        const std::size_t i = of_a[n];
        std::vector<std::size_t> there;
        const bool alone = gaps[i] && of_a_there[{*gaps[i], sort_of(a_.names[i])}] == 1;
        for (auto j = alone ? std::lower_bound(of_b.begin(), of_b.end(), gaps[i]->after)
                            : of_b.end();
             j != of_b.end() && (gaps[i]->before == 0 || *j + 1 < gaps[i]->before) &&
             there.size() < 2;
             ++j) {
          if (sort_of(b_.names[*j]) == sort_of(a_.names[i])) there.push_back(*j);
        }
        const std::size_t same = std::max(of_a.size(), of_b.size()) - 1;
        const std::string equal =
            "the same bits as " + std::to_string(same) + " other" + (same == 1 ? "" : "s");
        if (there.size() == 1 && !b_.names[there.front()].pair) {
          Pair(i, there.front(), by_class ? 0.8 : 0.7, "order",
               equal + ", told apart by the order of definition" +
                   (by_class ? " and the class" : ""));
        } else {
          SuggestEqual(i, of_b[std::min(n, of_b.size() - 1)], equal);
        }
      }
    }
  }

  void SuggestEqual(std::size_t i, std::size_t j, const std::string& equal) {
    if (*reason_[i].method != '\0') return;  // the first finding knows of all of them
    const Observation& first = a_.names[i].first();
    char value[64] = "";
    if (IsConstant(first))
      (void)std::snprintf(value, sizeof value, "constant, all %.6g: ", first.stats->min);
    reason_[i] = {.confidence = 0.3,
                  .method = "order",
                  .ambiguous = true,
                  .reason = "ambiguous: " + std::string(value) + equal,
                  .of_b = j};
  }

  Side a_, b_;
  std::vector<Proposed> reason_;  // by name of A
  std::size_t cut_ = 0;
};

// Whether a line of a map can hold the name.
bool CanBeWritten(const std::string& name) {
  constexpr std::size_t kNameMax = 1000;
  if (name.empty() || name == "-" || name.size() > kNameMax || name.find("->") != std::string::npos)
    return false;
  return std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return c > ' ' && c < 127 && c != ',' && c != '\\' && c != '#';
  });
}

std::string LineOf(const v1::ProposedName& one) {
  char confidence[16];
  (void)std::snprintf(confidence, sizeof confidence, "  # %.2f ", one.confidence());
  const bool writable = CanBeWritten(one.a()) && CanBeWritten(one.b());
  if (!writable || one.ambiguous()) {
    return "# " + Printable(one.a()) + " -> " + Printable(one.b()) + confidence + one.reason() +
           (writable ? "" : "; a map cannot hold this name") + "\n";
  }
  return (IsPlainName(one.a()) ? one.a() : RE2::QuoteMeta(one.a())) + " -> " + one.b() +
         confidence + one.reason() + "\n";
}

void List(const google::protobuf::RepeatedPtrField<std::string>& names, const std::string& run,
          std::string& text) {
  const std::string begin = "# only in " + Printable(run) + ": ";
  for (int i = 0; i < std::min(names.size(), kListedMax); ++i)
    text += begin + Printable(names[i]) + "\n";
  if (names.size() > kListedMax)
    text += begin + std::to_string(names.size() - kListedMax) + " more\n";
}

std::string MapOf(const v1::ProposeMapResponse& report) {
  const auto sure = std::count_if(report.records().begin(), report.records().end(),
                                  [](const auto& one) { return !one.ambiguous(); });
  std::string text = "# statctl map propose " + Printable(report.run_a()) + " " +
                     Printable(report.run_b()) + ": " + std::to_string(sure) + " pairs, " +
                     std::to_string(report.records_size() - sure) +
                     " ambiguous, by the records of step" + (report.steps_size() == 1 ? "" : "s");
  for (int i = 0; i < report.steps_size(); ++i)
    text += (i == 0 ? " " : " and ") + std::to_string(report.steps(i));
  text +=
      "\n# Each line ends with its confidence and the reason. Ambiguous lines are comments: check "
      "them.\n";
  for (const v1::ProposedName& one : report.records()) text += LineOf(one);
  List(report.only_a(), report.run_a(), text);
  List(report.only_b(), report.run_b(), text);
  return text;
}

std::set<std::string> DefinedNames(const RankCatalogue& catalogue) {
  std::set<std::string> names;
  for (const TensorDef& def : catalogue.activations) names.insert(def.key.name);
  return names;
}

// The first steps that both runs have, of one launch each.
struct CommonSteps {
  std::vector<std::uint64_t> steps;
  std::size_t attempt_a = 0, attempt_b = 0;
  std::vector<StepData> a, b;
};

Result<CommonSteps> ReadCommonSteps(RunView& a, RunView& b, std::uint32_t rank,
                                    const std::stop_token& stop) {
  CommonSteps common;
  STATCOLLECT_ASSIGN_OR_RETURN(const auto every, StepSet::Parse(""));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto steps_a, a.Steps(every));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto steps_b, b.Steps(every));
  for (const auto& [step, attempt_a] : steps_a) {
    if (stop.stop_requested()) return Status(Code::kCancelled, "map propose: cancelled");
    const auto other = steps_b.find(step);
    if (other == steps_b.end()) continue;
    const std::size_t attempt_b = other->second;
    if (!common.steps.empty() && (attempt_a != common.attempt_a || attempt_b != common.attempt_b))
      break;
    STATCOLLECT_ASSIGN_OR_RETURN(auto of_a, a.Read(attempt_a, rank, step));
    STATCOLLECT_ASSIGN_OR_RETURN(auto of_b, b.Read(attempt_b, rank, step));
    if (of_a.observations.empty() || of_b.observations.empty()) continue;
    common.attempt_a = attempt_a;
    common.attempt_b = attempt_b;
    common.steps.push_back(step);
    common.a.push_back(std::move(of_a));
    common.b.push_back(std::move(of_b));
    if (common.steps.size() == kStepsCompared) break;
  }
  return common;
}

std::optional<std::uint32_t> LowestCommonRank(const RunView& a, const RunView& b) {
  const auto ranks_b = b.AllRanks();
  for (const std::uint32_t rank : a.AllRanks()) {
    if (std::binary_search(ranks_b.begin(), ranks_b.end(), rank)) return rank;
  }
  return std::nullopt;
}

Status ProposeNames(RunView& a, RunView& b, const std::stop_token& stop,
                    v1::ProposeMapResponse& out) {
  out.set_run_a(a.run());
  out.set_run_b(b.run());
  const auto rank = LowestCommonRank(a, b);
  CommonSteps common;
  if (rank) {
    STATCOLLECT_ASSIGN_OR_RETURN(common, ReadCommonSteps(a, b, *rank, stop));
  }
  if (common.steps.empty()) {
    return {Code::kNotFound, "map propose: found no step with tensors of the same rank in both '" +
                                 Printable(a.run()) + "' and '" + Printable(b.run()) +
                                 "'; record both from the same step, such as step 0"};
  }
  STATCOLLECT_ASSIGN_OR_RETURN(const auto catalogue_a, a.Catalogue(common.attempt_a, *rank));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto catalogue_b, b.Catalogue(common.attempt_b, *rank));
  std::set<std::string> of_both;
  const auto names_a = DefinedNames(*catalogue_a), names_b = DefinedNames(*catalogue_b);
  std::set_intersection(names_a.begin(), names_a.end(), names_b.begin(), names_b.end(),
                        std::inserter(of_both, of_both.end()));
  if (a.AllRanks().size() > 1 || b.AllRanks().size() > 1)
    out.add_notes("compared rank " + std::to_string(*rank) + " of both runs");
  if (!of_both.empty()) {
    out.add_notes(std::to_string(of_both.size()) + " name" + (of_both.size() == 1 ? "" : "s") +
                  " that both runs have need no line");
  }
  out.mutable_steps()->Assign(common.steps.begin(), common.steps.end());
  Proposer proposer(Gather(*catalogue_a, std::move(common.a), of_both),
                    Gather(*catalogue_b, std::move(common.b), of_both));
  STATCOLLECT_RETURN_IF_ERROR(proposer.Run(stop));
  proposer.Fill(out);
  out.set_map(MapOf(out));
  return Status::Ok();
}

}  // namespace

Result<ProposeMapRequest> FromWire(const v1::ProposeMapRequest& request) {
  return SelectionFromWire<ProposeMapRequest>(request);
}

Status ProposeMap(const Context& context, const ProposeMapRequest& request,
                  v1::ProposeMapResponse& out) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto a, RunView::Open(context.store, request.run_a));
  STATCOLLECT_ASSIGN_OR_RETURN(auto b, RunView::Open(context.store, request.run_b));
  const DiffRequest as_diff{.run_a = request.run_a, .run_b = request.run_b};
  STATCOLLECT_ASSIGN_OR_RETURN(auto logical, ChooseLogical(context.store, a, b, as_diff));
  if (!logical) return ProposeNames(a, b, context.stop, out);
  STATCOLLECT_ASSIGN_OR_RETURN(auto view_a, RunView::Open(*logical->a, request.run_a));
  STATCOLLECT_ASSIGN_OR_RETURN(auto view_b, RunView::Open(*logical->b, request.run_b));
  return ProposeNames(view_a, view_b, context.stop, out);
}

}  // namespace statcollect::query
