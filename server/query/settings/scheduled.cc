#include "server/query/settings/scheduled.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "server/query/settings/config_diff.h"
#include "server/query/settings/optimizer_keys.h"

namespace statcollect::query {
namespace {

using Config = std::map<std::string, std::string>;

// OneCycleLR and CyclicLR move betas and momentum, too.
constexpr std::array<std::string_view, 3> kScheduled = {"lr", "momentum", "betas"};

bool IsScheduled(std::string_view key) {
  const auto parsed = ParseOptimizerKey(key);
  return parsed &&
         std::find(kScheduled.begin(), kScheduled.end(), parsed->second) != kScheduled.end();
}

std::optional<std::pair<const RankMeta*, const RankMeta*>> NewestThatBeginTogether(
    const Launch& a, const Launch& b) {
  for (std::size_t i = a.attempt + 1; i-- > 0;) {
    for (std::size_t j = b.attempt + 1; j-- > 0;) {
      const Launch of_a{.view = a.view, .attempt = i, .rank = a.rank};
      const Launch of_b{.view = b.view, .attempt = j, .rank = b.rank};
      if (BeginTogether(of_a, of_b)) return std::pair(of_a.Meta(), of_b.Meta());
    }
  }
  return std::nullopt;
}

void Take(const Config& from, const std::string& key, Config& to) {
  const auto found = from.find(key);
  if (found == from.end()) {
    to.erase(key);
  } else {
    to[key] = found->second;
  }
}

}  // namespace

const RankMeta* Launch::Meta() const {
  const auto& ranks = view.ranks(attempt);
  const auto meta = rank ? ranks.find(*rank) : ranks.begin();
  return meta == ranks.end() ? nullptr : &meta->second;
}

bool BeginTogether(const Launch& a, const Launch& b) {
  const RankMeta *of_a = a.Meta(), *of_b = b.Meta();
  return of_a != nullptr && of_b != nullptr && of_a->first_step &&
         of_a->first_step == of_b->first_step;
}

std::vector<std::string> AlignScheduled(const Launch& a, const Launch& b, Config& of_a,
                                        Config& of_b) {
  std::vector<std::string> left_out;
  if (BeginTogether(a, b)) return left_out;
  const auto together = NewestThatBeginTogether(a, b);
  for (const ConfigDifference& difference : CompareConfig(of_a, of_b)) {
    if (!difference.a || !difference.b || !IsScheduled(difference.key)) continue;
    if (together) {
      Take(together->first->info.config, difference.key, of_a);
      Take(together->second->info.config, difference.key, of_b);
    } else {
      of_a.erase(difference.key);
      of_b.erase(difference.key);
      left_out.push_back(difference.key);
    }
  }
  return left_out;
}

}  // namespace statcollect::query
