#include "server/query/verdict/because.h"

#include <cmath>

#include "server/query/compare/roundoff.h"
#include "server/query/number_text.h"
#include "server/query/verdict/constants.h"

namespace statcollect::query {
namespace {

// "2.5 times", "570 times", "2.3e7 times"
std::string Times(double logarithm) {
  const double times = std::exp(logarithm);
  if (times < 100 || times > 1e5) return ShortNumber(times) + " times";
  const double second = times < 1000  ? 10
                        : times < 1e4 ? 100
                                      : 1000;  // what the second significant digit counts
  return std::to_string(std::lround(times / second) * std::lround(second)) + " times";
}

std::string Count(std::size_t count, const char* one, const char* many) {
  return count == 1 ? std::string("one ") + one : std::to_string(count) + " " + many;
}

const char* WhatIsJudged(const Explained& one) {
  if (one.stage == Stage::kOptimizer && one.pair->a.def->key.kind == Kind::kWeight)
    return "its update differs by ";
  if (one.cancelled) return "against the terms it sums up, it differs by ";
  return "it differs by ";
}

std::string SizeText(const Explained& one, bool measured) {
  return WhatIsJudged(one) + ShortNumber(one.observed) + ", " + Times(RatioOf(one)) + " what " +
         (measured ? "the noise of the twins explains" : "its inputs and rounding explain") + " (" +
         ShortNumber(one.expected) + ")";
}

void AddExcess(const Explained& one, const Jump& jump, std::vector<std::string>& reasons) {
  if (std::isinf(jump.ratio)) {
    reasons.push_back("its values differ in more than size");
    return;
  }
  reasons.push_back(SizeText(one, jump.kind == JumpKind::kMeasured));
  if (jump.sisters > 0)
    reasons.push_back(Count(jump.sisters, "module of its kind stays", "modules of its kind stay") +
                      " at about " + Times(jump.usual));
  if (jump.past > 0)
    reasons.push_back("in earlier steps, it was at most " + Times(jump.usual) +
                      " what was expected");
}

}  // namespace

Confidence ConfidenceIn(const Explained& one, const Jump& jump, bool quiet) {
  if (jump.confidence) return *jump.confidence;
  const bool endless = std::isinf(jump.ratio) && jump.ratio > 0;
  if (endless) return Confidence::kCertain;
  if (jump.kind == JumpKind::kInput) {
    const bool given = quiet || one.stage == Stage::kWeights || !IsFloat(one.pair->a.layout->dtype);
    return given ? Confidence::kCertain : Confidence::kLikely;
  }
  if (jump.kind == JumpKind::kSetting) {
    // Among many tensors inside of a module one is far out by chance.
    const bool seen = jump.of_outer ? jump.stands_out : jump.ratio > setting::kSeen;
    return quiet || seen ? Confidence::kCertain : Confidence::kLikely;
  }
  if (jump.kind == JumpKind::kUnchanged && jump.excess > guessed::kCertain)
    return Confidence::kCertain;
  return jump.excess > guessed::kLikely || quiet ? Confidence::kLikely : Confidence::kPossible;
}

std::vector<std::string> Reasons(std::span<const Explained> step, const Jump& jump, bool quiet) {
  const Explained& one = step[jump.index];
  std::vector<std::string> reasons;
  switch (jump.kind) {
    case JumpKind::kInput:
      reasons.push_back(
          quiet || one.stage == Stage::kWeights
              ? std::string(kOfInput)
              : "neither rounding nor the weights before it explain that it differs by " +
                    ShortNumber(one.observed));
      break;
    case JumpKind::kSetting:
      reasons.push_back(one.stage == Stage::kOptimizer
                            ? "a recorded setting of the optimizer differs in this step"
                        : jump.of_outer ? "a recorded setting of a module around it differs"
                                        : "a recorded setting of its module differs");
      if (!quiet && jump.ratio < setting::kSeen) {
        reasons.push_back("its effect here is no larger than rounding");
      } else if (!quiet) {
        AddExcess(one, jump, reasons);
      }
      break;
    case JumpKind::kUnchanged:
      if (jump.sisters > 0)
        reasons.push_back(Count(jump.sisters, "module of its kind and shape gives",
                                "modules of its kind and shape give") +
                          " equal bits, so it is not a kernel that rounds differently");
      if (jump.past > 0)
        reasons.push_back(
            "it gave equal bits in the steps before, so it is not a kernel that rounds "
            "differently");
      break;
    case JumpKind::kMeasured:
    case JumpKind::kExcess:
      AddExcess(one, jump, reasons);
  }
  if (quiet && jump.kind != JumpKind::kInput) reasons.emplace_back(kAllBitsAgree);
  return reasons;
}

}  // namespace statcollect::query
