#include "common/redact.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <utility>

#include "common/ascii.h"
#include "common/names.h"
#include "common/parse.h"
#include "common/secret_addresses.h"
#include "common/secret_names.h"

namespace statcollect {
namespace {

using ascii::IsAlnum;
using ascii::IsLower;
using ascii::IsOneOf;
using ascii::IsUpper;
using ascii::Lower;

constexpr std::size_t kNone = std::string_view::npos;
constexpr std::string_view kBlanks = " \t";
// Of a value of which it is not sure that it is hidden, so that hostile text is not read again and
// again.
constexpr std::size_t kValueMax = 1024;
constexpr std::size_t kRandomMin = 20;

// With which the access tokens of known services begin, and how many characters at least follow.
constexpr std::pair<std::string_view, std::size_t> kTokenHeads[] = {
    {"stc_", 12},       {"ghp_", 8},     {"gho_", 8},   {"ghs_", 8},   {"ghu_", 8},
    {"github_pat_", 8}, {"glpat-", 8},   {"xoxa-", 8},  {"xoxb-", 8},  {"xoxp-", 8},
    {"xoxe-", 8},       {"xapp-", 8},    {"AKIA", 8},   {"ASIA", 12},  {"AIza", 20},
    {"eyJ", 20},        {"dapi", 24},    {"SG.", 20},   {"ya29.", 8},  {"nvapi-", 20},
    {"sk_live_", 8},    {"rk_live_", 8}, {"whsec_", 8}, {"sk-ant-", 8}};
// Those that names begin with, too ("hf_checkpoint"): something after them has to look like a
// secret.
constexpr std::string_view kWordHeads[] = {"hf_", "sk-",      "npm_",      "pypi-", "gsk_",
                                           "r8_", "api_org_", "wandb_v1_", "LTAI"};
// Before the credentials of a header.
constexpr std::string_view kSchemes[] = {"basic",     "bearer", "token", "digest",
                                         "negotiate", "apikey", "ntlm"};
constexpr std::string_view kSignatures[] = {"sig", "signature", "x-amz-signature",
                                            "x-goog-signature"};
// An option that begins with one of these is often a switch: what follows is no value.
constexpr std::string_view kSwitchWords[] = {"use",  "no",      "enable", "disable",
                                             "with", "require", "skip",   "allow"};
constexpr std::string_view kUserOptions[] = {"-u", "--user", "--userpwd", "--proxy-user"};
constexpr std::string_view kTypes[] = {"str", "bytes", "int", "bool", "Any", "Optional[str]"};

bool IsNameCharacter(char c) { return IsAlnum(c) || c == '_' || c == '-' || c == '.'; }
bool IsBlank(char c) { return c == ' ' || c == '\t'; }
bool IsSpace(char c) { return IsBlank(c) || c == '\n' || c == '\r'; }
bool IsQuote(char c) { return c == '"' || c == '\''; }

// The text with parts left out, written from front to back.
class Writer {
 public:
  explicit Writer(std::string_view text) : text_(text) {}

  void Hide(std::size_t begin, std::size_t end) {
    written_.append(text_.substr(done_, begin - done_)).append(kRedacted);
    done_ = end;
  }
  std::string Finish() { return written_.append(text_.substr(done_)); }

 private:
  const std::string_view text_;
  std::string written_;
  std::size_t done_ = 0;
};

// Finds names, looks whether a value follows, and hides it if it is a secret.
class AssignmentScanner {
 public:
  explicit AssignmentScanner(std::string_view text) : text_(text), writer_(text) {}

  std::string Hide() {
    for (std::size_t at = 0; at < text_.size();) {
      if (!IsNameCharacter(text_[at])) {
        ++at;
        continue;
      }
      std::size_t end = at;
      while (end < text_.size() && IsNameCharacter(text_[end])) ++end;
      at = Name(at, end);
    }
    return writer_.Finish();
  }

 private:
  // What follows a name.
  struct Value {
    std::size_t begin = 0, end = 0;  // without quotes
    std::size_t after = 0;
    bool quoted = false;
  };
  enum class Link { kOption, kEquals, kColon, kPair };

  // Handles the name in [begin, end) and returns where to go on.
  std::size_t Name(std::size_t begin, std::size_t end) {
    const std::string_view name = text_.substr(begin, end - begin);
    const std::size_t opening = QuoteBefore(begin);
    std::size_t next = end;
    const bool closed = opening != kNone && SkipQuote(&next, text_[begin - 1]);
    if (closed && Is(next, ']')) ++next;  // os.environ["TOKEN"] = "x"
    const std::size_t sign = SkipBlanks(next);
    if (Is(sign, '=') && !Is(sign + 1, '='))
      return Assigned(name, begin, end, SkipBlanks(sign + (Is(sign + 1, '>') ? 2 : 1)),
                      Link::kEquals, closed);
    if (Is(sign, ':') && !Is(sign + 1, ':') && !Is(sign + 1, '/'))
      return Assigned(name, begin, end, SkipBlanks(sign + (Is(sign + 1, '=') ? 2 : 1)),
                      Link::kColon, closed);
    if (name.starts_with('-')) return Option(name, begin, end, sign, closed);
    if (closed && Is(sign, ',') && opening > 0 && text_[opening - 1] == '(')
      return Assigned(name, begin, end, SkipBlanks(sign + 1), Link::kPair, closed);
    return Credentials(name, end);
  }

  // "--password x", "['--password', 'x']".
  std::size_t Option(std::string_view name, std::size_t begin, std::size_t end, std::size_t next,
                     bool closed) {
    if (closed && Is(next, ',')) ++next;
    while (next < text_.size() && IsSpace(text_[next])) ++next;
    std::size_t value = next;
    while (value < text_.size() && (IsQuote(text_[value]) || text_[value] == '\\')) ++value;
    if (next == end || value >= text_.size() || text_.substr(value, 2) == "--") return end;
    return Assigned(name, begin, end, next, Link::kOption, closed);
  }

  std::size_t Assigned(std::string_view name, std::size_t begin, std::size_t end, std::size_t at,
                       Link link, bool closed) {
    const bool value_of_named = named_secret_ && Lower(name) == "value";
    named_secret_ = false;
    Secrecy secrecy = value_of_named ? Secrecy::kCertain : SecrecyIn(name, link, closed);
    const bool may_name_another =
        !value_of_named && (Lower(name) == "name" || Lower(name) == "key");
    const bool may_be_user = link == Link::kOption && IsOneOf(kUserOptions, name);
    if (secrecy == Secrecy::kNone && !may_name_another && !may_be_user) return end;
    if (text_.substr(at).starts_with(kRedacted)) return at + kRedacted.size();
    limit_ = std::min(text_.size(), secrecy >= Secrecy::kProbable ? text_.size() : at + kValueMax);
    Value value = ValueAt(name, begin, at, link, closed);
    if (link == Link::kColon && !closed && !value.quoted) {  // def f(password: str = "x")
      const std::size_t sign = SkipBlanks(value.after);
      if (Is(sign, '=') && !Is(sign + 1, '='))
        value = ValueAt(name, begin, SkipBlanks(sign + 1), link, closed);
      else if (IsOneOf(kTypes, text_.substr(value.begin, value.end - value.begin)))
        return end;
    }
    const std::string_view content = text_.substr(value.begin, value.end - value.begin);
    if (may_name_another) named_secret_ = SecrecyOf(content) >= Secrecy::kProbable;
    if (may_be_user) return HideUser(value, end);
    if (!IsHidden(secrecy, content) || (!value.quoted && IsCode(name, content, secrecy)))
      return end;
    if (value.end == limit_ && limit_ < text_.size()) {
      limit_ = text_.size();
      value = ValueAt(name, begin, at, link, closed);
    }
    writer_.Hide(value.begin, value.end);
    return value.after;
  }

  static Secrecy SecrecyIn(std::string_view name, Link link, bool closed) {
    if (IsOneOf(kSignatures, Lower(name)) && link == Link::kEquals) return Secrecy::kCertain;
    while (name.starts_with('-')) name.remove_prefix(1);
    const Secrecy secrecy = SecrecyOf(name);
    if (secrecy == Secrecy::kNone) return secrecy;
    const auto words = WordsOf(name);
    if (link == Link::kOption && IsOneOf(kSwitchWords, words.front())) return Secrecy::kWeak;
    // In prose: "unknown token: x".
    const bool prose = link == Link::kColon && !closed && words.size() == 1;
    return prose && secrecy == Secrecy::kProbable ? Secrecy::kWeak : secrecy;
  }

  Value ValueAt(std::string_view name, std::size_t name_begin, std::size_t at, Link link,
                bool closed) const {
    if (at + 1 < text_.size() && std::string_view("bBuUrRfF").find(text_[at]) != kNone &&
        IsQuote(text_[at + 1]))
      ++at;
    if (Is(at, '\\') && at + 1 < text_.size() && IsQuote(text_[at + 1]))
      return Quoted(at + 2, text_.substr(at, 2));
    if (at < text_.size() && IsQuote(text_[at])) return Quoted(at + 1, text_.substr(at, 1));
    // The quote around "name=value" or "name: value", as a shell needs it.
    const std::size_t opening = closed ? kNone : QuoteBefore(name_begin);
    if (opening != kNone) return Quoted(at, text_.substr(opening, name_begin - opening), false);
    const auto words = WordsOf(name);
    const bool header =
        link != Link::kOption && (IsOneOf(words, "authorization") || IsOneOf(words, "cookie"));
    if (header) {
      const bool quotes = Lower(text_.substr(at, 6)) == "digest";  // "Digest username="
      const std::size_t stop =
          std::min(text_.find_first_of(quotes ? "\n" : "\n\"'", at), text_.size());
      return {.begin = at, .end = stop, .after = stop};
    }
    if (at < text_.size() && std::string_view("[{(").find(text_[at]) != kNone &&
        link != Link::kOption)
      if (const auto list = Bracketed(at)) return *list;
    std::size_t stop = Unquoted(name_begin, at, link);
    if (IsOneOf(kSchemes, Lower(text_.substr(at, stop - at))) && Is(stop, ' '))
      stop = Unquoted(name_begin, stop + 1, link);
    return {.begin = at, .end = stop, .after = stop};
  }

  // From after the opening quote to the closing one, or to the end of a text that was cut. A shell
  // writes a single quote inside single quotes as '"'"'.
  Value Quoted(std::size_t begin, std::string_view quote, bool own = true) const {
    constexpr std::string_view kShellQuote = "'\"'\"'";
    std::size_t at = begin;
    while (at < limit_) {
      if (text_.substr(at, kShellQuote.size()) == kShellQuote && quote == "'") {
        at += kShellQuote.size();
      } else if (text_.substr(at, quote.size()) == quote) {
        break;
      } else {
        at += text_[at] == '\\' ? 2 : 1;
      }
    }
    const std::size_t end = std::min(at, limit_);
    return {.begin = begin,
            .end = end,
            .after = std::min(end + (own ? quote.size() : 0), text_.size()),
            .quoted = own};
  }

  // A list or mapping with texts in it: between its brackets.
  std::optional<Value> Bracketed(std::size_t at) const {
    int depth = 0;
    std::size_t end = at;
    bool texts = false;
    for (; end < text_.size() && end - at < kValueMax; ++end) {
      const char c = text_[end];
      texts = texts || IsQuote(c);
      if (c == '[' || c == '{' || c == '(') ++depth;
      if ((c == ']' || c == '}' || c == ')') && --depth == 0) break;
    }
    if (!texts) return std::nullopt;
    return Value{.begin = at + 1, .end = end, .after = end, .quoted = true};
  }

  std::size_t Unquoted(std::size_t name_begin, std::size_t at, Link link) const {
    const char before = name_begin > 0 ? text_[name_begin - 1] : '\n';
    std::size_t last = name_begin;  // the character before the name, blanks left out
    while (last > 0 && IsSpace(text_[last - 1])) --last;
    const bool in_list = last > 0 && std::string_view("([{,").find(text_[last - 1]) != kNone;
    for (; at < limit_; ++at) {
      const char c = text_[at];
      if (IsSpace(c) || IsQuote(c) ||
          (c == '\\' && at + 1 < text_.size() && IsQuote(text_[at + 1])))
        break;
      if (link == Link::kOption) continue;
      if ((c == '&' || c == '#') && (before == '?' || before == '&')) break;
      if (c == ';' && before == ';') break;
      if (in_list && (c == ',' || c == ')' || c == ']' || c == '}')) break;
      if ((c == ',' || c == ';' || c == '&') && NameAndSignAt(at + 1)) break;
    }
    return at;
  }

  bool NameAndSignAt(std::size_t at) const {
    at = SkipBlanks(at);
    const std::size_t begin = at;
    while (at < text_.size() && IsNameCharacter(text_[at])) ++at;
    return at > begin && (Is(at, '=') || Is(at, ':'));
  }

  // The right side of a line of a program, as tracebacks have it: "token=token", "key =
  // self.key(x)".
  static bool IsCode(std::string_view name, std::string_view value, Secrecy secrecy) {
    if (value == name || value.ends_with("." + std::string(name))) return true;
    return secrecy != Secrecy::kCertain && value.size() < kValueMax && value.find('(') != kNone;
  }

  // "--user name:password" of curl.
  std::size_t HideUser(const Value& value, std::size_t end) {
    const std::string_view content = text_.substr(value.begin, value.end - value.begin);
    const std::size_t colon = content.find(':');
    if (colon == kNone || colon == 0 || content.find('/') != kNone) return end;
    const std::string_view rest = content.substr(colon + 1);
    if (rest.empty() || ParseNumber<std::uint64_t>(rest) || rest.starts_with(kRedacted)) return end;
    writer_.Hide(value.begin + colon + 1, value.end);
    return value.after;
  }

  // "Bearer x" and "Basic x" wherever they stand.
  std::size_t Credentials(std::string_view name, std::size_t end) {
    const std::string scheme = Lower(name);
    const std::size_t begin = SkipBlanks(end);
    if ((scheme != "bearer" && scheme != "basic") || begin == end) return end;
    std::size_t stop = begin;
    while (stop < text_.size() &&
           (IsNameCharacter(text_[stop]) || std::string_view("+/=~").find(text_[stop]) != kNone))
      ++stop;
    const std::string_view value = text_.substr(begin, stop - begin);
    const bool word = value.size() < kRandomMin && std::all_of(value.begin(), value.end(), IsLower);
    const bool secret = scheme == "bearer" ? value.size() > 7 && !word : IsUserAndPassword(value);
    if (secret) writer_.Hide(begin, stop);
    return secret ? stop : end;
  }

  // The base64 form of "user:password".
  static bool IsUserAndPassword(std::string_view base64) {
    constexpr std::string_view kDigits =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::uint32_t bits = 0;
    int count = 0;
    bool colon = false;
    while (base64.ends_with('=')) base64.remove_suffix(1);
    for (const char c : base64) {
      const std::size_t digit = kDigits.find(c);
      if (digit == kNone) return false;
      bits = bits << 6 | static_cast<std::uint32_t>(digit);
      count += 6;
      if (count < 8) continue;
      count -= 8;
      const auto byte = static_cast<unsigned char>(bits >> count);
      if (byte < 0x20 || byte == 0x7f) return false;
      colon = colon || byte == ':';
    }
    return colon;
  }

  bool Is(std::size_t at, char c) const { return at < text_.size() && text_[at] == c; }

  std::size_t SkipBlanks(std::size_t at) const {
    while (at < text_.size() && IsBlank(text_[at])) ++at;
    return at;
  }

  // Where the quote begins that stands directly before `at`, with its backslash; kNone: there is
  // none.
  std::size_t QuoteBefore(std::size_t at) const {
    if (at == 0 || !IsQuote(text_[at - 1])) return kNone;
    return at > 1 && text_[at - 2] == '\\' ? at - 2 : at - 1;
  }

  bool SkipQuote(std::size_t* at, char quote) const {
    const std::size_t mark = Is(*at, '\\') ? *at + 1 : *at;
    if (!Is(mark, quote)) return false;
    *at = mark + 1;
    return true;
  }

  const std::string_view text_;
  Writer writer_;
  std::size_t limit_ = 0;  // where reading a value ends at the latest
  bool named_secret_ =
      false;  // the last assignment was name="DB_PASSWORD": the next may be its value
};

std::string HidePrivateKeys(std::string_view text) {
  constexpr std::string_view kBegin = "-----BEGIN ", kEnd = "-----END ";
  Writer writer(text);
  for (std::size_t begin = text.find(kBegin); begin != kNone;
       begin = text.find(kBegin, begin + 1)) {
    const std::size_t dashes = text.find("-----", begin + kBegin.size());
    if (text.substr(begin, dashes - begin).find("PRIVATE KEY") == kNone) continue;
    const std::size_t end = text.find(kEnd, begin);
    const std::size_t last = end == kNone ? kNone : text.find("-----", end + kEnd.size());
    const std::size_t stop = last == kNone ? text.size() : last + 5;
    writer.Hide(begin, stop);
    begin = stop - 1;
  }
  return writer.Finish();
}

std::string HideKnownTokens(std::string_view text) {
  Writer writer(text);
  std::size_t end = 0;  // of the characters of names and tokens around `at`
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (at > 0 && IsAlnum(text[at - 1])) continue;
    if (at >= end) {
      for (end = at; end < text.size() && IsNameCharacter(text[end]);) ++end;
    }
    const std::string_view run = text.substr(at, end - at);
    const bool token =
        std::any_of(std::begin(kTokenHeads), std::end(kTokenHeads), [&](const auto& one) {
          return run.starts_with(one.first) && run.size() >= one.first.size() + one.second;
        });
    const bool word =
        std::any_of(std::begin(kWordHeads), std::end(kWordHeads), [&](std::string_view head) {
          return run.starts_with(head) && LooksSecret(run.substr(head.size(), kValueMax));
        });
    if (!token && !word) continue;
    writer.Hide(at, end);
    at = end - 1;
  }
  return writer.Finish();
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

std::string HideRandomRuns(std::string_view text) {
  Writer writer(text);
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    while (end < text.size() && (IsAlnum(text[end]) || text[end] == '+')) ++end;
    if (LooksRandom(text.substr(at, end - at))) writer.Hide(at, end);
    at = std::max(end, at + 1);
  }
  return writer.Finish();
}

// Of a list: the name of the entry before "args.3", "args.2"; empty if the name does not end in a
// position.
std::string EntryBefore(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  if (dot == kNone) return "";
  const auto position = ParseNumber<std::uint64_t>(std::string_view(name).substr(dot + 1));
  return position && *position > 0 ? name.substr(0, dot + 1) + std::to_string(*position - 1) : "";
}

Secrecy SecrecyFrom(const std::map<std::string, std::string>& settings, const std::string& name,
                    std::string_view value) {
  const auto find = [&](const std::string& other) -> std::string_view {
    const auto found = settings.find(other);
    return found == settings.end() ? std::string_view() : std::string_view(found->second);
  };
  std::string_view option = find(EntryBefore(name));
  if (option.starts_with('-') && option.find_first_of("= ") == kNone && !value.starts_with("--")) {
    option.remove_prefix(std::min(option.find_first_not_of('-'), option.size()));
    const auto words = WordsOf(option);
    const Secrecy secrecy = SecrecyOf(option);
    return !words.empty() && IsOneOf(kSwitchWords, words.front())
               ? std::min(secrecy, Secrecy::kWeak)
               : secrecy;
  }
  if (!name.ends_with(".value")) return Secrecy::kNone;
  const std::string above = name.substr(0, name.size() - 5);
  const Secrecy secrecy = std::max(SecrecyOf(find(above + "name")), SecrecyOf(find(above + "key")));
  return secrecy >= Secrecy::kProbable ? Secrecy::kCertain : Secrecy::kNone;
}

// So much of a text that what is cut later is more than a secret of ordinary length.
std::string_view Readable(std::string_view text, std::size_t bytes_max) {
  return text.substr(0, 2 * bytes_max);
}

}  // namespace

std::string RedactText(std::string_view text) {
  std::string shown = HidePrivateKeys(text);
  shown = HideInAddresses(shown);
  shown = AssignmentScanner(shown).Hide();
  shown = HideKnownTokens(shown);
  return HideRandomRuns(shown);
}

std::string RedactSetting(std::string_view name, std::string_view value) {
  if (IsHidden(SecrecyOf(name), value)) return std::string(kRedacted);
  const auto words = WordsOf(name);
  const bool webhook = std::any_of(words.begin(), words.end(), [](const std::string& word) {
    return word.starts_with("webhook");
  });
  return RedactText(webhook ? HidePaths(value) : std::string(value));
}

std::map<std::string, std::string> StoredSettings(
    const std::map<std::string, std::string>& settings, std::size_t bytes_max) {
  std::map<std::string, std::string> stored;
  for (const auto& [name, value] : settings) {
    const bool hidden = IsHidden(SecrecyFrom(settings, name, value), value);
    stored.emplace_hint(
        stored.end(), name,
        hidden ? std::string(kRedacted)
               : Printable(RedactSetting(name, Readable(value, bytes_max)), bytes_max));
  }
  return stored;
}

std::string StoredText(std::string_view text, std::size_t bytes_max) {
  return Printable(RedactText(Readable(text, bytes_max)), bytes_max);
}

}  // namespace statcollect
