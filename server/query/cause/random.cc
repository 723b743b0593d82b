// Random numbers: dropout, seeds, states of generators.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>

#include "common/names.h"
#include "server/query/cause/constants.h"
#include "server/query/cause/linear.h"
#include "server/query/cause/rules.h"
#include "server/query/cause/text.h"
#include "server/query/settings/config_diff.h"

namespace statcollect::query::cause {
namespace {

constexpr std::string_view kState = "rng/";  // scalars: fingerprints of generators' states

struct StateDifference {
  std::string scalar;
  std::uint64_t step = 0;
};

// Python's and NumPy's generators are not torch's.
bool IsOfTorch(std::string_view scalar) {
  return scalar.starts_with("rng/cpu") || scalar.starts_with("rng/cuda");
}

// Without a seed a generator's state differs in every process, and says nothing. Older recordings
// know a seed only.
bool IsSeeded(const Side& side, std::string_view scalar) {
  std::string generator(scalar.substr(kState.size()));
  if (generator == "cpu") generator = "torch";
  if (generator.starts_with("cuda")) generator = "cuda";
  const auto seeded = side.config.find("random." + generator + ".seeded");
  if (seeded != side.config.end()) return seeded->second == "true";
  const auto seed = side.config.find("random." + generator + ".seed");
  return seed != side.config.end() && seed->second != "unknown" && seed->second != "none";
}

// A generator whose fingerprints differ, and the first step in which they do: of those that agreed
// before, or were seeded in both runs. One that had differed before the step before the root's has
// changed nothing until then.
std::optional<StateDifference> FindStateDifference(const Evidence& evidence,
                                                   bool of_torch = false) {
  struct Generator {
    bool agreed = false;
    std::optional<std::uint64_t> differs;
  };
  std::map<std::string, Generator> generators;
  for (const ScalarRecord& scalar : evidence.b.scalars) {
    if (!scalar.name.starts_with(kState) || (of_torch && !IsOfTorch(scalar.name))) continue;
    const auto a = evidence.a.ScalarAt(scalar.name, scalar.step);
    if (!a) continue;
    Generator& generator = generators[scalar.name];
    if (*a == scalar.value) {
      generator.agreed = generator.agreed || !generator.differs;
    } else if (!generator.differs) {
      generator.differs = scalar.step;
    }
  }
  std::optional<StateDifference> found;
  for (const auto& [name, generator] : generators) {
    if (generator.differs.value_or(0) < evidence.step_before.value_or(0) || !generator.differs)
      continue;
    const bool known =
        generator.agreed || (IsSeeded(evidence.a, name) && IsSeeded(evidence.b, name));
    if (known && (!found || *generator.differs < found->step))
      found = {.scalar = name, .step = *generator.differs};
  }
  return found;
}

bool StatesAgree(const Evidence& evidence) {
  bool known = false;
  for (const ScalarRecord& scalar : evidence.b.scalars) {
    if (!IsOfTorch(scalar.name) || scalar.step != evidence.root.step) continue;
    const auto a = evidence.a.ScalarAt(scalar.name, scalar.step);
    if (a && *a != scalar.value) return false;
    known = known || a;
  }
  return known;
}

double ZeroShare(const Observation& seen) {
  return seen.stats->numel > 0
             ? static_cast<double>(seen.stats->zero) / static_cast<double>(seen.stats->numel)
             : 0;
}

std::string Percent(double share) { return NumberText(std::round(share * 1000) / 10) + " %"; }

bool IsDropout(const Divergence& root) {
  return root.stage == Stage::kForward && root.kind == Kind::kOutput &&
         (root.class_name.find("Dropout") != std::string::npos ||
          root.class_name.find("DropPath") != std::string::npos);
}

// Shares of dropped elements that chance does not explain.
bool DifferentRates(const Observation& a, const Observation& b) {
  const double share = (ZeroShare(a) + ZeroShare(b)) / 2;
  const double count = static_cast<double>(a.stats->numel);
  return std::abs(ZeroShare(a) - ZeroShare(b)) >
         kDeviations * std::sqrt(2 * share * (1 - share) / count) + 1 / count;
}

std::optional<ConfigDifference> FindSeed(const Evidence& evidence) {
  for (const ConfigDifference& difference : CompareConfig(evidence.a.config, evidence.b.config)) {
    const std::string_view key = difference.key;
    const bool seed = key == "random.torch.seed" || key == "random.cuda.seed" ||
                      key == "random.numpy.seed" || key == "random.python.seed";
    if (seed && difference.a && difference.b && *difference.a != "unknown" &&
        *difference.b != "unknown")
      return difference;
  }
  return std::nullopt;
}

// Whether most of the loaded weights differ, not counting constant ones.
bool MostWeightsDiffer(const Evidence& evidence) {
  std::size_t random = 0, different = 0;
  for (const Pair& pair : evidence.at) {
    const TensorStats& stats = *pair.a->stats;
    if (pair.key().kind != Kind::kWeight || pair.key().mode != Mode::kInit ||
        !(stats.min < stats.max))
      continue;
    ++random;
    if (!pair.SameBits()) ++different;
  }
  return random > 0 && static_cast<double>(different) >= kSeeded * static_cast<double>(random);
}

Found FromRates(const Evidence& evidence, const Observation& a, const Observation& b) {
  const double share_a = ZeroShare(a), share_b = ZeroShare(b);
  const bool off_a = share_a * kTimesOff < share_b, off_b = share_b * kTimesOff < share_a;
  Cause cause{.rule = "dropout",
              .confidence = Confidence::kLikely,
              .key = evidence.root.activation,
              .a = Percent(share_a),
              .b = Percent(share_b)};
  const std::string where = Printable(evidence.root.activation) + " " + evidence.AtStep();
  if (off_a || off_b) {
    cause.text = "dropout is " + InBoth(evidence, off_a ? "off" : "on", off_b ? "off" : "on") +
                 " (" + where + ", " + evidence.root.mode + " mode)";
    cause.confidence = Confidence::kCertain;
  } else {
    cause.text = "the share of elements that are dropped is " + InBoth(evidence, cause.a, cause.b) +
                 " (" + where + ")";
  }
  return cause;
}

bool IsCompiledInOne(const Evidence& evidence) {
  const auto compiled = [](const Side& side) {
    const auto found = side.config.find("parallel.compiled");
    return found == side.config.end() ? std::string() : found->second;
  };
  return compiled(evidence.a) != compiled(evidence.b);
}

}  // namespace

Found FindDropout(const Evidence& evidence) {
  if (!IsDropout(evidence.root) || !evidence.HasRootPair()) return std::nullopt;
  const Observation &a = *evidence.a.root, &b = *evidence.b.root;
  const bool known = a.layout->Trusts(Statistic::kZero) && b.layout->Trusts(Statistic::kZero);
  if (!known || a.stats->numel != b.stats->numel) return std::nullopt;
  if (DifferentRates(a, b)) return FromRates(evidence, a, b);
  if (a.stats->zero == 0) return std::nullopt;
  const bool same_states = StatesAgree(evidence);
  // Both drop some. From equal states only other code draws other numbers.
  if (same_states && !IsCompiledInOne(evidence)) return std::nullopt;
  Cause cause{
      .rule = "dropout", .confidence = Confidence::kLikely, .key = evidence.root.activation};
  cause.text = Printable(evidence.root.activation) + " drops " + Percent(ZeroShare(b)) +
               " of its elements in both runs " + evidence.AtStep() + " and not the same ones: " +
               (same_states ? "torch.compile draws its own random numbers from equal states "
                              "(torch._inductor.config.fallback_random = True draws as without it)"
                            : "the random numbers differ");
  if (const auto state = FindStateDifference(evidence, /*of_torch=*/true)) {
    cause.confidence = Confidence::kCertain;
    cause.key = state->scalar;
    cause.text += " (" + state->scalar + ", from step " + std::to_string(state->step) + " on)";
  }
  return cause;
}

Found FindRandomState(const Evidence& evidence) {
  const Divergence& root = evidence.root;
  if (root.stage != Stage::kWeights && root.stage != Stage::kBatch && root.stage != Stage::kForward)
    return std::nullopt;
  if (root.reason != Reason::kNumeric && root.reason != Reason::kBitwise) return std::nullopt;
  if (evidence.agreeing_part != nullptr) return std::nullopt;  // of the same draw
  // One weight that differs was not drawn from another state.
  if (root.stage == Stage::kWeights && !MostWeightsDiffer(evidence)) return std::nullopt;
  const auto seed = FindSeed(evidence);
  if (seed && root.stage != Stage::kForward) {
    return Make("random_state",
                "the seed is " + InBoth(evidence, *seed->a, *seed->b) + " (" + seed->key + ")",
                Confidence::kLikely, seed->key, *seed->a, *seed->b);
  }
  const auto state = FindStateDifference(evidence, /*of_torch=*/root.stage == Stage::kForward);
  if (!state) return std::nullopt;
  return Make("random_state",
              "the state of the random numbers differs from step " + std::to_string(state->step) +
                  " on (" + state->scalar + ")",
              root.stage == Stage::kBatch ? Confidence::kLikely : Confidence::kPossible,
              state->scalar);
}

}  // namespace statcollect::query::cause
