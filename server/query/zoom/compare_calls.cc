#include "server/query/zoom/compare_calls.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "server/query/compare/distance.h"
#include "server/query/compare/roundoff.h"
#include "server/query/zoom/align.h"

namespace statcollect::query {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
// How much larger an operator makes a difference of its inputs before that counts as its own.
constexpr double kJump = 32;
// How much rounding may grow on the way to where both agree again.
constexpr double kAgree = 8;

// What other kernels, which add up in another order, may differ by.
double RoundingOf(DType dtype) {
  const double unit = UnitRoundoff(dtype);
  return unit > 0x1p-12 ? 4 * unit : 64 * unit;
}

// Two tensors that should be equal.
struct Agreement {
  bool equal = true;  // bit for bit
  bool shape = false;
  double distance = 0;
  double rounding = 0;
};

Agreement AgreementOf(const Observation* a, const Observation* b) {
  if (a == nullptr || b == nullptr) return {.equal = a == b, .distance = a == b ? 0 : kInfinite};
  Agreement found{.rounding = std::max(RoundingOf(a->layout->dtype), RoundingOf(b->layout->dtype))};
  found.shape = a->layout->shape != b->layout->shape || a->layout->dtype != b->layout->dtype;
  found.equal = !found.shape && a->stats->hash == b->stats->hash;
  if (found.equal) return found;
  found.distance = a->stats->numel == b->stats->numel ? Measure(*a, *b).value : kInfinite;
  if (std::isnan(found.distance)) found.distance = kInfinite;
  return found;
}

void Add(const Agreement& one, Agreement& all) {
  all.equal = all.equal && one.equal;
  all.shape = all.shape || one.shape;
  all.distance = std::max(all.distance, one.distance);
  all.rounding = std::max(all.rounding, one.rounding);
}

// What the call hands on; without its word, the result of its last operator.
std::vector<ZoomRef> HandedOn(const ZoomDocument& document) {
  std::vector<ZoomRef> refs;
  for (const ZoomOutput& output : document.outputs) refs.push_back(output.ref);
  if (refs.empty() && !document.operators.empty())
    refs.push_back({.number = document.operators.back().number});
  return refs;
}

class Comparing {
 public:
  Comparing(const ZoomSide& a, const ZoomSide& b)
      : a_(a), b_(b), ops_a_(a.document->operators), ops_b_(b.document->operators) {}

  ZoomComparison Run() {
    ZoomComparison found = Search();
    const bool is_named =
        found.outcome == ZoomOutcome::kOperator || found.outcome == ZoomOutcome::kBlock;
    // The same by other operators, or in another order.
    if (is_named && !IsArgument(found) && HandOnTheSame()) found.outcome = ZoomOutcome::kRounding;
    return found;
  }

 private:
  ZoomComparison Search() {
    const auto pairs = AlignOperators({ops_a_, DigestsOf(a_)}, {ops_b_, DigestsOf(b_)});
    MatchInputs();
    FindMeetings(pairs);
    for (std::size_t k = 0; k < pairs.size(); ++k) {
      const auto [i, j] = pairs[k];
      SkipTo(i, j);
      next_a_ = i + 1;
      next_b_ = j + 1;
      if (!Judge(ops_a_[i], ops_b_[j])) continue;
      // An argument that differs is named whatever becomes of it.
      if (IsArgument(found_)) return std::move(found_);
      const auto meeting =
          std::find_if(meetings_.begin(), meetings_.end(), [&](std::size_t at) { return at >= k; });
      if (meeting == meetings_.end()) return std::move(found_);
      // Both compute the same in another way, up to here.
      if (!small_) {
        small_ = std::exchange(found_, {});
        small_->outcome = ZoomOutcome::kRounding;
      }
      k = *meeting;
      next_a_ = pairs[k].first + 1;
      next_b_ = pairs[k].second + 1;
      lone_a_.clear();
      lone_b_.clear();
      numbers_a_.clear();
      numbers_b_.clear();
    }
    SkipTo(ops_a_.size(), ops_b_.size());
    return AtEnd();
  }

  // Whether the same operator on the same tensors has another argument.
  bool IsArgument(const ZoomComparison& found) const {
    return found.outcome == ZoomOutcome::kOperator && found.inputs_equal && !found.shape &&
           !found.differences.empty() && !other_kind_;
  }

  // Whether all that both hand on agrees but for rounding.
  bool HandOnTheSame() const {
    const auto ends = Ends();
    if (a_.document->outputs.empty() || ends.size() != a_.document->outputs.size() ||
        ends.size() != b_.document->outputs.size())
      return false;
    return std::all_of(ends.begin(), ends.end(), [&](const auto& end) {
      const Agreement one = AgreementOf(a_.value(end.first), b_.value(end.second));
      return one.equal || (!one.shape && one.distance <= kAgree * one.rounding);
    });
  }

  static std::vector<std::uint64_t> DigestsOf(const ZoomSide& side) {
    std::vector<std::uint64_t> digests;
    for (const ZoomOperator& one : side.document->operators) {
      const Observation* value = side.value({.number = one.number});
      digests.push_back(value == nullptr ? 0 : value->stats->hash);
    }
    return digests;
  }

  // The positions at which an operator stops being used.
  struct Uses {
    std::map<std::uint32_t, std::size_t> position;  // by number
    std::vector<std::size_t> last;
    explicit Uses(const ZoomDocument& document) : last(document.operators.size(), 0) {
      const std::vector<ZoomOperator>& operators = document.operators;
      for (std::size_t i = 0; i < operators.size(); ++i) position.emplace(operators[i].number, i);
      for (std::size_t i = 0; i < operators.size(); ++i) {
        for (const ZoomArgument& argument : operators[i].arguments) {
          for (const ZoomRef& ref : argument.refs) {
            const auto of = ref.of_input ? position.end() : position.find(ref.number);
            if (of != position.end() && of->second < i) last[of->second] = i;
          }
        }
      }
      for (const ZoomRef& ref : HandedOn(document)) {
        const auto of = ref.of_input ? position.end() : position.find(ref.number);
        if (of != position.end()) last[of->second] = operators.size();
      }
    }
  };

  // Until which position something is used, of what was computed up to each, that differs or that
  // only this side has.
  static std::vector<std::size_t> DifferenceUntil(const std::vector<ZoomOperator>& operators,
                                                  const Uses& uses, const std::vector<bool>& agrees,
                                                  const std::vector<bool>& paired) {
    std::vector<bool> good = agrees;
    std::vector<std::size_t> until(operators.size(), 0);
    std::size_t furthest = 0;
    for (std::size_t i = 0; i < operators.size(); ++i) {
      if (!paired[i] && operators[i].view) {  // as what it is a view of
        for (const ZoomArgument& argument : operators[i].arguments) {
          for (const ZoomRef& ref : argument.refs) {
            const auto of = ref.of_input ? uses.position.end() : uses.position.find(ref.number);
            if (of != uses.position.end() && of->second < i && good[of->second]) good[i] = true;
          }
        }
      }
      if (!good[i]) furthest = std::max(furthest, uses.last[i]);
      until[i] = furthest;
    }
    return until;
  }

  // Pairs after which nothing is used that differs and was computed before.
  void FindMeetings(const std::vector<std::pair<std::size_t, std::size_t>>& pairs) {
    std::vector<bool> agrees_a(ops_a_.size()), agrees_b(ops_b_.size());
    std::vector<bool> paired_a(ops_a_.size()), paired_b(ops_b_.size());
    for (const auto& [i, j] : pairs) {
      Agreement all;
      for (std::size_t k = 0; k < std::max(ops_a_[i].results.size(), ops_b_[j].results.size());
           ++k) {
        const auto result = static_cast<std::uint32_t>(k);
        Add(AgreementOf(a_.value({.number = ops_a_[i].number, .result = result}),
                        b_.value({.number = ops_b_[j].number, .result = result})),
            all);
      }
      paired_a[i] = paired_b[j] = true;
      agrees_a[i] = agrees_b[j] =
          all.equal || (!all.shape && all.distance <= kAgree * all.rounding);
    }
    const auto until_a = DifferenceUntil(ops_a_, Uses(*a_.document), agrees_a, paired_a);
    const auto until_b = DifferenceUntil(ops_b_, Uses(*b_.document), agrees_b, paired_b);
    for (std::size_t k = 0; k < pairs.size(); ++k) {
      const auto [i, j] = pairs[k];
      if (agrees_a[i] && until_a[i] <= i && until_b[j] <= j) meetings_.push_back(k);
    }
  }

  // Operators up to here that have no partner join the open block.
  void SkipTo(std::size_t i, std::size_t j) {
    for (; next_a_ < i; ++next_a_) lone_a_.push_back(&ops_a_[next_a_]);
    for (; next_b_ < j; ++next_b_) lone_b_.push_back(&ops_b_[next_b_]);
    for (const ZoomOperator* one : lone_a_) numbers_a_.insert(one->number);
    for (const ZoomOperator* one : lone_b_) numbers_b_.insert(one->number);
  }

  void MatchInputs() {
    std::map<std::string, std::uint32_t> by_label;
    for (const ZoomInput& input : b_.document->inputs) {
      if (!input.label.empty()) by_label.emplace(input.label, input.number);
    }
    for (const ZoomInput& input : a_.document->inputs) {
      labels_[input.number] = input.label;
      if (const auto other = by_label.find(input.label); other != by_label.end())
        partner_[{.of_input = true, .number = input.number}] = {.of_input = true,
                                                                .number = other->second};
    }
  }

  using Refs = std::vector<std::pair<const std::string*, ZoomRef>>;  // by name of the argument

  // What goes into a pair of operators.
  struct Inputs {
    Agreement agreement;
    std::uint32_t tensors = 0;
    bool rewired = false;     // another tensor is passed
    bool from_block = false;  // one that differs comes from operators without a partner
    bool only_one = false;    // such a one is given to one of the pair only
    bool outside = true;      // those that differ are all inputs or weights of the module
    std::vector<ZoomDifference> differences;
  };

  Inputs InputsOf(const ZoomOperator& a, const ZoomOperator& b) {
    Inputs found;
    other_kind_ = false;
    fed_a_.clear();
    fed_b_.clear();
    for (std::size_t k = 0; k < std::max(a.arguments.size(), b.arguments.size()); ++k)
      CompareArgument(a, b, k, found.differences);
    const auto refs_a = RefsOf(a), refs_b = RefsOf(b);
    for (std::size_t k = 0; k < std::min(refs_a.size(), refs_b.size()); ++k) {
      ++found.tensors;
      AddTensor(*refs_a[k].first, refs_a[k].second, refs_b[k].second, found);
    }
    AddRest(refs_a, refs_b.size(), numbers_a_, fed_a_, found);
    AddRest(refs_b, refs_a.size(), numbers_b_, fed_b_, found);
    return found;
  }

  // Tensors that only one of the pair is given, such as a gradient that another part of the module
  // adds to a sum: they come from a block if nothing of the other run has computed them.
  static void AddRest(const Refs& refs, std::size_t paired, const std::set<std::uint32_t>& numbers,
                      std::vector<ZoomRef>& fed, Inputs& to) {
    for (std::size_t k = paired; k < refs.size(); ++k) {
      if (!IsLone(refs[k].second, numbers)) continue;
      to.agreement.equal = false;
      to.from_block = to.only_one = true;
      fed.push_back(refs[k].second);
    }
  }

  void AddTensor(const std::string& name, const ZoomRef& a, const ZoomRef& b, Inputs& to) {
    const Agreement one = AgreementOf(a_.value(a), b_.value(b));
    Add(one, to.agreement);
    if (one.equal) return;
    to.outside = to.outside && a.of_input && b.of_input && !labels_[a.number].empty();
    if (IsLone(a, numbers_a_) || IsLone(b, numbers_b_) || IsWrittenByLone(a, b)) {
      to.from_block = true;
      fed_a_.push_back(a);
      fed_b_.push_back(b);
    } else if (!IsPartner(a, b)) {
      to.rewired = true;
      to.differences.push_back(
          {.name = name, .a = TextOf(*a_.document, a), .b = TextOf(*b_.document, b)});
    } else if (a.of_input && labels_[a.number].empty() && one.distance > one.rounding) {
      to.differences.push_back({.name = name, .a = ValueOf(a_, a), .b = ValueOf(b_, b)});
    }
  }

  Agreement ResultsOf(const ZoomOperator& a, const ZoomOperator& b) {
    Agreement results;
    for (std::size_t k = 0; k < std::max(a.results.size(), b.results.size()); ++k) {
      const ZoomRef of_a{.number = a.number, .result = static_cast<std::uint32_t>(k)};
      const ZoomRef of_b{.number = b.number, .result = static_cast<std::uint32_t>(k)};
      partner_[of_a] = of_b;
      Add(AgreementOf(a_.value(of_a), b_.value(of_b)), results);
    }
    return results;
  }

  // Whether the pair of operators ends the search.
  bool Judge(const ZoomOperator& a, const ZoomOperator& b) {
    const Inputs given = InputsOf(a, b);
    const Agreement results = ResultsOf(a, b);
    if (results.equal) return false;
    const Agreement& inputs = given.agreement;
    const bool random = !a.random.empty() && a.random != b.random;
    const auto name_it = [&](ZoomOutcome outcome) {
      found_ = {};
      found_.outcome = outcome;
      found_.a = {&a};
      found_.b = {&b};
      found_.differences = given.differences;
      found_.inputs = given.tensors;
      found_.inputs_equal = inputs.equal;
      found_.input_distance = inputs.distance;
      found_.distance = results.distance;
      found_.shape = results.shape;
      found_.random = random;
      return true;
    };
    const bool large = results.shape || results.distance > results.rounding;
    if (inputs.equal) {
      if (!given.differences.empty() || large || random) return name_it(ZoomOutcome::kOperator);
      NoteSmall(name_it, ZoomOutcome::kRounding);
      return false;
    }
    if (given.only_one) return NameBlock(a, b, results);
    if (given.from_block &&
        (inputs.shape || inputs.distance > std::max(inputs.rounding, kJump * before_)))
      return NameBlock(a, b, inputs);
    if (given.from_block && !small_) NoteBlock(a, b, inputs);
    const bool grows = results.distance > 2 * inputs.distance || inputs.distance <= inputs.rounding;
    if (large && (given.rewired || (!given.differences.empty() && grows)))
      return name_it(ZoomOutcome::kOperator);
    if (results.distance > kJump * std::max(inputs.distance, results.rounding))
      return name_it(ZoomOutcome::kOperator);
    before_ = std::max(before_, results.distance);
    const bool rounding = !inputs.shape && inputs.distance <= inputs.rounding;
    if (given.outside) NoteSmall(name_it, rounding ? ZoomOutcome::kRounding : ZoomOutcome::kInputs);
    return false;
  }

  void CompareArgument(const ZoomOperator& a, const ZoomOperator& b, std::size_t k,
                       std::vector<ZoomDifference>& differences) {
    static const ZoomArgument kNone{.name = {}, .value = "not given", .refs = {}};
    // By name: an argument that has its default is left out.
    if (k < a.arguments.size()) {
      const ZoomArgument& of_a = a.arguments[k];
      const ZoomArgument& of_b = Find(b, of_a.name, kNone);
      if (of_a.value != of_b.value && (of_a.refs.empty() || of_b.refs.empty())) {
        differences.push_back({.name = of_a.name, .a = of_a.value, .b = of_b.value});
        other_kind_ = other_kind_ || of_a.refs.empty() != of_b.refs.empty();
      }
    }
    if (k < b.arguments.size()) {
      const ZoomArgument& of_b = b.arguments[k];
      if (&Find(a, of_b.name, kNone) == &kNone)
        differences.push_back({.name = of_b.name, .a = kNone.value, .b = of_b.value});
    }
  }

  static const ZoomArgument& Find(const ZoomOperator& in, const std::string& name,
                                  const ZoomArgument& none) {
    const auto found = std::find_if(in.arguments.begin(), in.arguments.end(),
                                    [&](const ZoomArgument& one) { return one.name == name; });
    return found == in.arguments.end() ? none : *found;
  }

  static Refs RefsOf(const ZoomOperator& of) {
    Refs refs;
    for (const ZoomArgument& argument : of.arguments) {
      for (const ZoomRef& ref : argument.refs) refs.emplace_back(&argument.name, ref);
    }
    return refs;
  }

  static bool IsLone(const ZoomRef& ref, const std::set<std::uint32_t>& numbers) {
    return !ref.of_input && numbers.contains(ref.number);
  }
  // A tensor whose memory an operator without a partner may have written.
  bool IsWrittenByLone(const ZoomRef& a, const ZoomRef& b) const {
    const auto writes = [](const std::vector<const ZoomOperator*>& lone) {
      return std::any_of(lone.begin(), lone.end(), [](const auto* one) { return one->in_place; });
    };
    const auto rewritten = [](const ZoomDocument& of, const ZoomRef& ref) {
      return ref.of_input && ref.number < of.inputs.size() &&
             of.inputs[ref.number].label == "memory written before";
    };
    return (rewritten(*a_.document, a) && writes(lone_a_)) ||
           (rewritten(*b_.document, b) && writes(lone_b_));
  }

  // Whether they stand for the same tensor. Inputs without a name are matched where they are first
  // used.
  bool IsPartner(const ZoomRef& a, const ZoomRef& b) {
    const auto [entry, fresh] = partner_.try_emplace(a, b);
    if (fresh && !(a.of_input && b.of_input)) {
      partner_.erase(entry);
      return false;
    }
    return entry->second == b;
  }

  static std::string TextOf(const ZoomDocument& document, const ZoomRef& ref) {
    if (ref.of_input) {
      const bool known =
          ref.number < document.inputs.size() && !document.inputs[ref.number].label.empty();
      return known ? document.inputs[ref.number].label : "a tensor from outside";
    }
    for (const ZoomOperator& one : document.operators) {
      if (one.number == ref.number)
        return (one.results.size() > 1 ? "result " + std::to_string(ref.result) : "the result") +
               " of " + one.name + (one.place.empty() ? "" : " (" + one.place + ")");
    }
    return "a result";
  }

  static std::string ValueOf(const ZoomSide& side, const ZoomRef& ref) {
    const Observation* value = side.value(ref);
    if (value == nullptr || !value->stats->has_finite) return "a tensor from outside";
    if (value->stats->numel == 1) return NumberOf(value->stats->mean);
    return "a tensor from outside with norm " + NumberOf(value->stats->l2);
  }
  static std::string NumberOf(double value) {
    char text[32];
    const int length = std::snprintf(text, sizeof(text), "%.6g", value);
    return {text, static_cast<std::size_t>(length)};
  }

  template <typename NameIt>
  void NoteSmall(const NameIt& name_it, ZoomOutcome outcome) {
    if (small_) return;
    name_it(outcome);
    small_ = std::exchange(found_, {});
  }

  bool NameBlock(const ZoomOperator& a, const ZoomOperator& b, const Agreement& inputs) {
    found_ = Block(a.place, b.place, inputs);
    return true;
  }
  void NoteBlock(const ZoomOperator& a, const ZoomOperator& b, const Agreement& inputs) {
    small_ = Block(a.place, b.place, inputs);
    small_->outcome = ZoomOutcome::kRounding;
  }

  // The operators without a partner from which these tensors come, without one with a partner in
  // between; and those that write into memory.
  static std::vector<const ZoomOperator*> Behind(const std::vector<const ZoomOperator*>& lone,
                                                 std::vector<ZoomRef> refs) {
    std::map<std::uint32_t, const ZoomOperator*> by_number;
    for (const ZoomOperator* one : lone) by_number.emplace(one->number, one);
    const bool rewritten =
        std::any_of(refs.begin(), refs.end(), [](const ZoomRef& ref) { return ref.of_input; });
    std::map<std::uint32_t, const ZoomOperator*> found;
    for (const ZoomOperator* one : lone) {
      if (!rewritten || !one->in_place) continue;
      refs.push_back({.number = one->number});
    }
    while (!refs.empty()) {
      const ZoomRef ref = refs.back();
      refs.pop_back();
      const auto at = ref.of_input ? by_number.end() : by_number.find(ref.number);
      if (at == by_number.end() || !found.insert(*at).second) continue;
      for (const ZoomArgument& argument : at->second->arguments)
        refs.insert(refs.end(), argument.refs.begin(), argument.refs.end());
    }
    std::vector<const ZoomOperator*> operators;
    for (const auto& [number, one] : found) operators.push_back(one);
    return operators;
  }

  ZoomComparison Block(const std::string& before_a, const std::string& before_b,
                       const Agreement& handed_on) const {
    ZoomComparison block;
    block.outcome = ZoomOutcome::kBlock;
    block.a = Behind(lone_a_, fed_a_);
    block.b = Behind(lone_b_, fed_b_);
    block.distance = handed_on.distance;
    block.shape = handed_on.shape;
    block.before_a = before_a;
    block.before_b = before_b;
    const auto after = [](const std::vector<ZoomOperator>& all,
                          const std::vector<const ZoomOperator*>& lone) {
      return lone.empty() || lone.front() == all.data() ? std::string() : (lone.front() - 1)->place;
    };
    block.after_a = after(ops_a_, block.a);
    block.after_b = after(ops_b_, block.b);
    return block;
  }

  // Nothing named so far.
  ZoomComparison AtEnd() {
    // What the call hands on may differ though no pair has said so.
    fed_a_.clear();
    fed_b_.clear();
    Agreement ends;
    for (const auto& [a, b] : Ends()) {
      const Agreement one = AgreementOf(a_.value(a), b_.value(b));
      if (one.equal || !(IsLone(a, numbers_a_) || IsLone(b, numbers_b_))) continue;
      Add(one, ends);
      fed_a_.push_back(a);
      fed_b_.push_back(b);
    }
    if (!fed_a_.empty()) {
      if (ends.shape || ends.distance > std::max(ends.rounding, kJump * before_))
        return Block({}, {}, ends);
      if (!small_) {
        small_ = Block({}, {}, ends);
        small_->outcome = ZoomOutcome::kRounding;
      }
    }
    if (auto block = HandedOnByOne()) return *block;
    return small_ ? *small_ : ZoomComparison{};
  }

  // Pairs of what both hand on.
  std::vector<std::pair<ZoomRef, ZoomRef>> Ends() const {
    std::vector<std::pair<ZoomRef, ZoomRef>> ends;
    if (a_.document->outputs.empty() || b_.document->outputs.empty()) {
      if (!ops_a_.empty() && !ops_b_.empty())
        ends.push_back({{.number = ops_a_.back().number}, {.number = ops_b_.back().number}});
      return ends;
    }
    const auto of_a = ByName(*a_.document), of_b = ByName(*b_.document);
    for (const auto& [name, refs] : of_a) {
      const auto other = of_b.find(name);
      // The engine adds up several gradients of one tensor: parts of a sum are no pairs.
      if (other == of_b.end() || other->second.size() != refs.size()) continue;
      for (std::size_t k = 0; k < refs.size(); ++k) ends.emplace_back(refs[k], other->second[k]);
    }
    return ends;
  }

  // What is handed on under each name; "gradient of w (2)" is another part of "gradient of w".
  static std::map<std::string, std::vector<ZoomRef>> ByName(const ZoomDocument& document) {
    std::map<std::string, std::vector<ZoomRef>> refs;
    for (const ZoomOutput& output : document.outputs) {
      const std::size_t part =
          output.label.ends_with(')') ? output.label.rfind(" (") : output.label.npos;
      refs[output.label.substr(0, part)].push_back(output.ref);
    }
    return refs;
  }

  // What only one of the runs hands on. Where each has something that the other has not, the names
  // are others.
  std::optional<ZoomComparison> HandedOnByOne() const {
    if (a_.document->outputs.empty() || b_.document->outputs.empty()) return std::nullopt;
    const auto of_a = ByName(*a_.document), of_b = ByName(*b_.document);
    ZoomComparison block;
    block.outcome = ZoomOutcome::kBlock;
    block.distance = kInfinite;
    const auto add = [](const auto& of, const auto& other, const std::vector<ZoomOperator>& all,
                        std::vector<const ZoomOperator*>& lone) {
      std::vector<std::string> names;
      for (const auto& [name, refs] : of) {
        if (other.contains(name)) continue;
        names.push_back(name);
        for (const ZoomOperator& one : all) {
          if (!refs[0].of_input && one.number == refs[0].number) lone.push_back(&one);
        }
      }
      return names;
    };
    const auto only_a = add(of_a, of_b, ops_a_, block.a), only_b = add(of_b, of_a, ops_b_, block.b);
    if (only_a.empty() == only_b.empty()) return std::nullopt;
    for (const std::string& name : only_a)
      block.differences.push_back({.name = name, .a = "handed on", .b = "missing"});
    for (const std::string& name : only_b)
      block.differences.push_back({.name = name, .a = "missing", .b = "handed on"});
    return block;
  }

  const ZoomSide& a_;
  const ZoomSide& b_;
  const std::vector<ZoomOperator>& ops_a_;
  const std::vector<ZoomOperator>& ops_b_;
  std::size_t next_a_ = 0, next_b_ = 0;
  std::vector<const ZoomOperator*> lone_a_, lone_b_;  // without a partner, so far
  std::set<std::uint32_t> numbers_a_, numbers_b_;     // of these
  std::vector<ZoomRef> fed_a_, fed_b_;                // tensors that differ and come from these
  std::map<ZoomRef, ZoomRef> partner_;
  std::map<std::uint32_t, std::string> labels_;  // of A's inputs
  bool other_kind_ = false;            // an argument is a tensor in one run and none in the other
  std::vector<std::size_t> meetings_;  // positions of pairs
  double before_ = 0;  // the largest distance that is known to come from outside or from rounding
  std::optional<ZoomComparison> small_;  // the first difference that alone means nothing
  ZoomComparison found_;
};

}  // namespace

ZoomComparison CompareCalls(const ZoomSide& a, const ZoomSide& b) { return Comparing(a, b).Run(); }

}  // namespace statcollect::query
