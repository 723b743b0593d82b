#include "common/redact.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>
#include <vector>

#include "common/parse.h"

namespace statcollect {
namespace {

// A word of a name that makes its value a secret wherever it stands.
constexpr std::string_view kSecretWords[] = {"password", "passwd",     "passphrase",   "secret",
                                             "secrets",  "credential", "credentials",  "apikey",
                                             "auth",     "pwd",        "authorization"};
// The same as the last word ("api_key"), unless an innocent word stands before it ("pad_token").
constexpr std::string_view kSecretLastWords[] = {"key", "keys", "token", "tokens"};
constexpr std::string_view kInnocentWords[] = {
    "pad",   "eos",   "bos",   "unk",     "sep",   "cls",   "mask",  "image",   "video",
    "audio", "sort",  "group", "primary", "cache", "state", "dict",  "query",   "name",
    "label", "text",  "input", "max",     "num",   "min",   "per",   "special", "start",
    "end",   "split", "extra", "total",   "batch", "added", "column"};
// With which the access tokens of known services begin, and how many characters at least follow.
constexpr std::pair<std::string_view, std::size_t> kTokenHeads[] = {
    {"stc_", 12},  {"hf_", 8},   {"sk-", 8},         {"sk_live_", 8}, {"rk_live_", 8}, {"ghp_", 8},
    {"gho_", 8},   {"ghs_", 8},  {"github_pat_", 8}, {"glpat-", 8},   {"xoxa-", 8},    {"xoxb-", 8},
    {"xoxp-", 8},  {"AKIA", 8},  {"ASIA", 12},       {"AIza", 20},    {"eyJ", 20},     {"npm_", 20},
    {"pypi-", 20}, {"dapi", 24}, {"SG.", 20},        {"ya29.", 8}};
constexpr std::size_t kRandomMin = 20;

bool IsAlnum(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }
bool IsUpper(char c) { return std::isupper(static_cast<unsigned char>(c)) != 0; }
bool IsLower(char c) { return std::islower(static_cast<unsigned char>(c)) != 0; }
bool IsTokenCharacter(char c) { return IsAlnum(c) || c == '_' || c == '-' || c == '.'; }

template <typename Words>
bool IsOneOf(const Words& words, std::string_view word) {
  return std::find(std::begin(words), std::end(words), word) != std::end(words);
}

// "wandb.apiKey" -> wandb, api, key.
std::vector<std::string> WordsOf(std::string_view name) {
  std::vector<std::string> words(1);
  for (std::size_t i = 0; i < name.size(); ++i) {
    const bool begins = i > 0 && IsUpper(name[i]) && IsLower(name[i - 1]);
    if ((!IsAlnum(name[i]) || begins) && !words.back().empty()) words.emplace_back();
    if (IsAlnum(name[i]))
      words.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(name[i])));
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

enum class Secrecy { kNone, kProbable, kCertain };

Secrecy SecrecyOf(std::string_view name) {
  std::vector<std::string> words = WordsOf(name);
  // A position in a list says nothing: "api_keys.0".
  while (!words.empty() && ParseNumber<std::uint64_t>(words.back())) words.pop_back();
  if (std::any_of(words.begin(), words.end(), [](const auto& word) { return IsOneOf(kSecretWords, word); }))
    return Secrecy::kCertain;
  if (words.empty() || !IsOneOf(kSecretLastWords, words.back())) return Secrecy::kNone;
  if (words.size() > 1 && IsOneOf(kInnocentWords, words[words.size() - 2])) return Secrecy::kNone;
  return Secrecy::kProbable;
}

bool IsSwitch(std::string_view value) {
  constexpr std::string_view kSwitches[] = {"", "true", "false", "null", "True", "False", "None"};
  return IsOneOf(kSwitches, value);
}

// A number, as of --max-key=512, or a special token of a vocabulary.
bool IsHarmless(std::string_view value) {
  if (value.size() <= 8 && ParseNumber<double>(value)) return true;
  const bool special =
      value.size() >= 3 && value.size() <= 32 &&
      ((value.front() == '<' && value.back() == '>') || (value.front() == '[' && value.back() == ']'));
  return special;
}

// Replaces [begin, end) and returns where the rest begins.
std::size_t Hide(std::string& text, std::size_t begin, std::size_t end) {
  text.replace(begin, end - begin, kRedacted);
  return begin + kRedacted.size();
}

// scheme://user:password@host -> scheme://(redacted)@host
void HideUrlUsers(std::string& text) {
  for (std::size_t at = text.find("://"); at != std::string::npos; at = text.find("://", at)) {
    at += 3;
    const std::size_t end = std::min(text.find_first_of("/?# \t\"'", at), text.size());
    const std::size_t mark = std::string_view(text).substr(at, end - at).rfind('@');
    if (mark != std::string::npos && mark > 0) at = Hide(text, at, at + mark);
  }
}

// "?sig=abc", "&access_token=abc", "password=abc", "Bearer abc"
void HideParameters(std::string& text) {
  for (std::size_t at = text.find('='); at != std::string::npos; at = text.find('=', at)) {
    std::size_t begin = at;
    while (begin > 0 && (IsAlnum(text[begin - 1]) || text[begin - 1] == '_' || text[begin - 1] == '-'))
      --begin;
    const std::string_view name = std::string_view(text).substr(begin, at - begin);
    const std::size_t end = std::min(text.find_first_of("&; \t\"',", at + 1), text.size());
    const std::string_view value = std::string_view(text).substr(at + 1, end - at - 1);
    constexpr std::string_view kSignatures[] = {"sig", "signature", "X-Amz-Signature", "X-Goog-Signature",
                                                "X-Amz-Security-Token"};
    const Secrecy secrecy = IsOneOf(kSignatures, name) ? Secrecy::kCertain : SecrecyOf(name);
    const bool hide = secrecy != Secrecy::kNone && !IsSwitch(value) && !value.starts_with(kRedacted) &&
                      (secrecy == Secrecy::kCertain || !IsHarmless(value));
    at = hide ? Hide(text, at + 1, end) : at + 1;
  }
  for (std::size_t at = text.find("Bearer "); at != std::string::npos; at = text.find("Bearer ", at)) {
    at += 7;
    const std::size_t end = std::min(text.find_first_of(" \t\"',", at), text.size());
    if (end > at + 7) at = Hide(text, at, end);
  }
}

void HidePrivateKeys(std::string& text) {
  const std::size_t begin = text.find("-----BEGIN ");
  if (begin != std::string::npos && text.find("PRIVATE KEY", begin) != std::string::npos)
    Hide(text, begin, text.size());
}

std::size_t EndOfToken(std::string_view text, std::size_t at) {
  while (at < text.size() && IsTokenCharacter(text[at])) ++at;
  return at;
}

void HideKnownTokens(std::string& text) {
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (at > 0 && IsAlnum(text[at - 1])) continue;
    for (const auto& [head, least] : kTokenHeads) {
      if (text.compare(at, head.size(), head) != 0) continue;
      const std::size_t end = EndOfToken(text, at + head.size());
      if (end - at - head.size() < least) continue;
      at = Hide(text, at, end) - 1;
      break;
    }
  }
}

// Whether letters of both cases and digits alternate as often as by chance: names do not.
bool LooksRandom(std::string_view run) {
  if (run.size() < kRandomMin) return false;
  const auto class_of = [](char c) { return IsUpper(c) ? 0 : IsLower(c) ? 1 : 2; };
  std::array<std::size_t, 3> counts{};
  std::size_t changes = 0;
  for (std::size_t i = 0; i < run.size(); ++i) {
    ++counts[static_cast<std::size_t>(class_of(run[i]))];
    if (i > 0 && class_of(run[i]) != class_of(run[i - 1])) ++changes;
  }
  return counts[0] > 0 && counts[1] > 0 && counts[2] > 0 && 5 * changes >= 2 * (run.size() - 1);
}

void HideRandomRuns(std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    while (end < text.size() && (IsAlnum(text[end]) || text[end] == '+')) ++end;
    if (end == at)
      ++at;
    else
      at = LooksRandom(std::string_view(text).substr(at, end - at)) ? Hide(text, at, end) : end;
  }
}

}  // namespace

std::string RedactSetting(std::string_view name, std::string_view value) {
  const Secrecy secrecy = SecrecyOf(name);
  if (secrecy != Secrecy::kNone && !IsSwitch(value) && (secrecy == Secrecy::kCertain || !IsHarmless(value)))
    return std::string(kRedacted);
  std::string text(value);
  HidePrivateKeys(text);
  HideUrlUsers(text);
  HideParameters(text);
  HideKnownTokens(text);
  HideRandomRuns(text);
  return text;
}

}  // namespace statcollect
