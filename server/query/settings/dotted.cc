#include "server/query/settings/dotted.h"

#include <algorithm>
#include <cctype>

#include "common/text.h"

namespace statcollect::query {

std::vector<std::string_view> ItemsOf(std::string_view list) {
  std::vector<std::string_view> parts = AllPartsOf(list, ", ");
  std::erase(parts, std::string_view());
  return parts;
}

std::string_view ParentOf(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : name.substr(0, dot);
}

bool Encloses(std::string_view outer, std::string_view inner) {
  return inner.starts_with(outer) && (inner.size() == outer.size() || inner[outer.size()] == '.');
}

std::string_view LastPart(std::string_view name) { return name.substr(name.rfind('.') + 1); }

std::string PatternOf(std::string_view name) {
  std::string pattern;
  for (std::size_t i = 0; i < name.size();) {
    const bool number =
        std::isdigit(static_cast<unsigned char>(name[i])) && (i == 0 || name[i - 1] == '.');
    pattern += number ? '*' : name[i];
    ++i;
    while (number && i < name.size() && std::isdigit(static_cast<unsigned char>(name[i]))) ++i;
  }
  return pattern;
}

std::vector<std::string> WordsOf(std::string_view name) {
  std::vector<std::string> words(1);
  bool lower_before = false;
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) == 0) {
      if (!words.back().empty()) words.emplace_back();
    } else {
      if (std::isupper(byte) != 0 && lower_before) words.emplace_back();
      words.back() += static_cast<char>(std::tolower(byte));
    }
    lower_before = std::islower(byte) != 0;
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

bool HasAny(const std::vector<std::string>& words, std::span<const std::string_view> names) {
  return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
    return std::find(names.begin(), names.end(), word) != names.end();
  });
}

bool IsNumber(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace statcollect::query
