#include "common/loss_names.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

namespace statcollect {
namespace {

// Beside a loss, these make its name that of another quantity.
constexpr std::array<std::string_view, 14> kOfSomethingElse = {
    "scale", "weight", "coef", "coeff", "factor", "lr",      "mask",
    "count", "time",   "ms",   "us",    "sec",    "seconds", "duration"};

std::vector<std::string> WordsOfName(std::string_view name) {
  std::vector<std::string> words(1);
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0 || byte >= 0x80) {
      words.back() += static_cast<char>(std::tolower(byte));
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

bool EndsInLoss(std::string_view word) { return word.ends_with("loss") || word == "losses"; }

}  // namespace

bool IsLoss(std::string_view name) {
  // Most names are none; they need no words.
  constexpr std::string_view kLoss = "loss";
  const auto is_same = [](unsigned char c, char l) { return std::tolower(c) == l; };
  if (std::search(name.begin(), name.end(), kLoss.begin(), kLoss.end(), is_same) == name.end())
    return false;
  const std::vector<std::string> words = WordsOfName(name);
  const auto is_other = [](const std::string& word) {
    return std::find(kOfSomethingElse.begin(), kOfSomethingElse.end(), word) !=
           kOfSomethingElse.end();
  };
  return std::any_of(words.begin(), words.end(), EndsInLoss) &&
         std::none_of(words.begin(), words.end(), is_other);
}

bool IsLossScale(std::string_view name) {
  const std::vector<std::string> words = WordsOfName(name);
  return words.size() >= 2 && words.back() == "scale" && words[words.size() - 2] == "loss";
}

std::string MainLoss(const std::set<std::string>& losses) {
  if (losses.contains("loss")) return "loss";
  for (const std::string& name : losses) {
    const std::vector<std::string> words = WordsOfName(name);
    if (!words.empty() && EndsInLoss(words.back())) return name;
  }
  return losses.empty() ? std::string() : *losses.begin();
}

}  // namespace statcollect
