#include "common/secret_names.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>

#include "common/ascii.h"
#include "common/parse.h"
#include "common/redact.h"

namespace statcollect {
namespace {

using ascii::IsAlnum;
using ascii::IsDigit;
using ascii::IsLower;
using ascii::IsOneOf;
using ascii::IsUpper;
using ascii::ToLower;

// A word that makes the value a secret wherever it stands in the name.
constexpr std::string_view kSecretWords[] = {
    "secret", "secrets",   "credential", "credentials", "auth",
    "pwd",    "basicauth", "oauth",      "httpauth",    "authorization"};
// The same for every word that has this in it: "dbpassword".
constexpr std::string_view kSecretParts[] = {"password",    "passwd",     "passphrase",
                                             "apikey",      "privatekey", "authtoken",
                                             "accesstoken", "secretkey",  "accesskey"};
// A name that ends in one of these is about the secret, and does not hold it: "password_file".
constexpr std::string_view kAboutWords[] = {
    "file",     "files",    "path",     "paths",     "dir",     "directory", "folder",  "type",
    "method",   "mode",     "enabled",  "enable",    "length",  "len",       "size",    "count",
    "field",    "column",   "name",     "names",     "backend", "policy",    "timeout", "expiry",
    "expires",  "ttl",      "url",      "uri",       "host",    "port",      "realm",   "domain",
    "scheme",   "error",    "errors",   "exception", "env",     "var",       "dim",     "required",
    "variable", "provider", "endpoint", "failure",   "failed",  "warning",   "retries", "version",
    "class",    "dtype"};
// Secrets as the last word, unless an innocent word stands before it.
constexpr std::string_view kSecretLastWords[] = {"key",    "keys",    "token", "tokens",
                                                 "cookie", "cookies", "jwt",   "pat"};
constexpr std::string_view kInnocentWords[] = {
    "pad",        "eos",       "bos",      "unk",      "sep",       "cls",      "mask",
    "image",      "video",     "audio",    "sort",     "group",     "primary",  "cache",
    "state",      "dict",      "query",    "name",     "label",     "text",     "input",
    "max",        "num",       "min",      "per",      "special",   "start",    "end",
    "split",      "extra",     "total",    "batch",    "added",     "column",   "sub",
    "next",       "prev",      "previous", "new",      "past",      "last",     "first",
    "current",    "target",    "source",   "src",      "tgt",       "data",     "metric",
    "monitor",    "loss",      "feature",  "hash",     "partition", "foreign",  "index",
    "registry",   "config",    "output",   "outputs",  "inputs",    "missing",  "unexpected",
    "ignore",     "ignored",   "skip",     "proj",     "head",      "kv",       "vision",
    "vocab",      "train",     "val",      "eval",     "test",      "valid",    "prompt",
    "completion", "generated", "context",  "seq",      "stop",      "bad",      "forced",
    "suppress",   "decoder",   "encoder",  "language", "lang",      "role",     "prefix",
    "suffix",     "middle",    "fim",      "patch",    "frame",     "position", "visual",
    "class",      "mem",       "memory",   "global",   "n",         "seen",     "trained",
    "active",     "expert",    "routed",   "dropped",  "reserved",  "unused",   "placeholder",
    "tokenizer",  "attention", "attn",     "self",     "cross"};
// Before "key" or "token" in one word: "hftoken".
constexpr std::string_view kCompoundHeads[] = {
    "api",     "auth",   "access",     "hf",      "hub",     "user",    "bot",
    "git",     "github", "gitlab",     "wandb",   "refresh", "session", "private",
    "secret",  "oauth",  "slack",      "discord", "service", "client",  "deploy",
    "ssh",     "sign",   "signing",    "master",  "account", "license", "hmac",
    "storage", "openai", "encryption", "bearer",  "security"};
// Before "pass" in one word: "dbpass", and not "bypass".
constexpr std::string_view kPassHeads[] = {"db",    "smtp",  "ftp",     "user", "ssh",   "my",
                                           "root",  "admin", "mysql",   "pg",   "redis", "sudo",
                                           "login", "mail",  "email",   "http", "proxy", "mongo",
                                           "ldap",  "imap",  "postgres"};
// Before "pass" as a word of its own: "forward_pass".
constexpr std::string_view kPassInnocent[] = {
    "forward",  "backward", "first",        "second",    "single", "multi", "one",
    "two",      "train",    "eval",         "val",       "test",   "per",   "n",
    "num",      "max",      "min",          "low",       "high",   "band",  "all",
    "micro",    "final",    "last",         "next",      "pre",    "post",  "graph",
    "custom",   "grad",     "fusion",       "fx",        "ir",     "opt",   "compiler",
    "inductor", "matcher",  "optimization", "optimizer", "update", "fwd",   "bwd",
    "each"};
constexpr std::size_t kSecretRunMin = 8;
constexpr std::size_t kLongRunMin = 24;

bool IsSecretWord(std::string_view word) {
  if (IsOneOf(kSecretWords, word) || word.ends_with("secret") || word.ends_with("credentials"))
    return true;
  if (word.ends_with("pass") && IsOneOf(kPassHeads, word.substr(0, word.size() - 4))) return true;
  return std::any_of(std::begin(kSecretParts), std::end(kSecretParts), [&](std::string_view part) {
    return word.find(part) != std::string_view::npos;
  });
}

bool IsSecretCompound(std::string_view word) {
  for (const std::string_view end : {"key", "keys", "token", "tokens"}) {
    if (word.ends_with(end) && IsOneOf(kCompoundHeads, word.substr(0, word.size() - end.size())))
      return true;
  }
  return false;
}

// By the words of one level, or of several if only the last word and the one before it count.
Secrecy SecrecyOfLastWords(const std::vector<std::string>& words) {
  if (words.empty()) return Secrecy::kNone;
  const std::string& last = words.back();
  const std::string_view before = words.size() > 1 ? std::string_view(words[words.size() - 2]) : "";
  if (last == "pass") {
    if (before.empty()) return Secrecy::kProbable;
    return IsOneOf(kPassInnocent, before) ? Secrecy::kNone : Secrecy::kCertain;
  }
  if (IsSecretCompound(last)) return Secrecy::kProbable;
  if (!IsOneOf(kSecretLastWords, last)) return Secrecy::kNone;
  if (before.empty()) return last == "token" ? Secrecy::kProbable : Secrecy::kWeak;
  return IsOneOf(kInnocentWords, before) ? Secrecy::kNone : Secrecy::kProbable;
}

Secrecy SecrecyOfLevel(std::string_view level) {
  const auto words = WordsOf(level);
  if (words.empty() || IsOneOf(kAboutWords, words.back())) return Secrecy::kNone;
  return std::any_of(words.begin(), words.end(), IsSecretWord) ? Secrecy::kCertain
                                                               : SecrecyOfLastWords(words);
}

bool IsSwitch(std::string_view value) {
  constexpr std::string_view kSwitches[] = {"",     "true",  "false", "null", "none",
                                            "True", "False", "None",  "yes",  "no",
                                            "on",   "off",   "NULL"};
  return IsOneOf(kSwitches, value);
}

// "${TOKEN}", "$TOKEN", "***".
bool IsReference(std::string_view value) {
  const auto all = [&](auto belongs) { return std::all_of(value.begin(), value.end(), belongs); };
  if (all([](char c) { return c == '*' || c == '.'; })) return true;
  if (!value.starts_with('$') || value.size() < 2) return false;
  value.remove_prefix(1);
  if (value.starts_with('{') && value.ends_with('}') &&
      value.find_first_of(",-") == std::string_view::npos)
    return true;
  return all([](char c) { return IsUpper(c) || IsDigit(c) || c == '_'; });
}

// A number or a size, as of --train-tokens=300B, or a special token of a vocabulary.
bool IsHarmless(std::string_view value) {
  std::string_view number = value;
  if (number.size() > 1 &&
      std::string_view("kKmMgGbBtT").find(number.back()) != std::string_view::npos)
    number.remove_suffix(1);
  if (number.size() <= 8 && ParseNumber<double>(number)) return true;
  return value.size() >= 3 && value.size() <= 32 &&
         ((value.front() == '<' && value.back() == '>') ||
          (value.front() == '[' && value.back() == ']'));
}

// Letters and digits without anything between them.
bool IsSecretRun(std::string_view run) {
  if (run.size() < kSecretRunMin) return false;
  const auto class_of = [](char c) { return IsUpper(c) ? 0 : IsLower(c) ? 1 : 2; };
  std::array<bool, 3> has{};
  std::size_t changes = 0;
  for (std::size_t i = 0; i < run.size(); ++i) {
    has[static_cast<std::size_t>(class_of(run[i]))] = true;
    if (i > 0 && class_of(run[i]) != class_of(run[i - 1])) ++changes;
  }
  if (has[0] + has[1] + has[2] < 2) return false;
  return 10 * changes >= 3 * (run.size() - 1) || (run.size() >= kLongRunMin && has[2]);
}

}  // namespace

std::vector<std::string> WordsOf(std::string_view name) {
  std::vector<std::string> words(1);
  for (std::size_t i = 0; i < name.size(); ++i) {
    const bool begins = i > 0 && IsUpper(name[i]) && IsLower(name[i - 1]);
    if ((!IsAlnum(name[i]) || begins) && !words.back().empty()) words.emplace_back();
    if (IsAlnum(name[i])) words.back() += ToLower(name[i]);
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

Secrecy SecrecyOf(std::string_view name) {
  if (name.starts_with("module_of."))
    return Secrecy::kNone;  // names of classes, with paths as values
  std::size_t dot = name.rfind('.');
  while (dot != std::string_view::npos && ParseNumber<std::uint64_t>(name.substr(dot + 1))) {
    name = name.substr(0, dot);
    dot = name.rfind('.');
  }
  const std::string_view last = dot == std::string_view::npos ? name : name.substr(dot + 1);
  const Secrecy own = SecrecyOfLevel(last);
  if (own == Secrecy::kCertain || dot == std::string_view::npos) return own;
  if (name.starts_with("module.") || name.starts_with("optimizer.")) return own;
  if (own != Secrecy::kNone) {
    // The last word with the one before it, also across a dot: "hub.token", "smtp.pass",
    // "sort.key".
    const auto words = WordsOf(name);
    if (name.starts_with("env.") || words.size() < 2) return own;
    const Secrecy both = SecrecyOfLastWords(words);
    return own == Secrecy::kWeak && !IsOneOf(kCompoundHeads, words[words.size() - 2])
               ? std::min(own, both)
               : both;
  }
  for (std::string_view above = name.substr(0, dot); !above.empty();) {
    dot = above.rfind('.');
    if (SecrecyOfLevel(dot == std::string_view::npos ? above : above.substr(dot + 1)) >=
        Secrecy::kProbable)
      return Secrecy::kProbable;
    above = dot == std::string_view::npos ? "" : above.substr(0, dot);
  }
  return Secrecy::kNone;
}

bool IsHidden(Secrecy secrecy, std::string_view value) {
  if (secrecy == Secrecy::kNone || IsSwitch(value) || IsReference(value) ||
      value.starts_with(kRedacted))
    return false;
  if (secrecy == Secrecy::kCertain) return true;
  return secrecy == Secrecy::kProbable ? !IsHarmless(value) : LooksSecret(value);
}

bool LooksSecret(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    while (end < text.size() && IsAlnum(text[end])) ++end;
    if (IsSecretRun(text.substr(at, end - at))) return true;
    at = end + 1;
  }
  return false;
}

}  // namespace statcollect
