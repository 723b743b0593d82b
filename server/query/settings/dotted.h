// Texts of parts: names, separated by dots, and lists, separated by commas.
#ifndef STATCOLLECT_SERVER_QUERY_SETTINGS_DOTTED_H_
#define STATCOLLECT_SERVER_QUERY_SETTINGS_DOTTED_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace statcollect::query {

// "weight", "bias" of "weight, bias".
std::vector<std::string_view> ItemsOf(std::string_view list);
// "blocks.1" of "blocks.1.ln2"; empty for a name without a dot.
std::string_view ParentOf(std::string_view name);
// Whether `inner` is `outer`, or the name of something inside.
bool Encloses(std::string_view outer, std::string_view inner);
// "weight" of "a.b.weight".
std::string_view LastPart(std::string_view name);
// "blocks.*.ln1" of "blocks.12.ln1": what modules of a list have in common.
std::string PatternOf(std::string_view name);

// "model.lnEps_2" -> model ln eps 2.
std::vector<std::string> WordsOf(std::string_view name);
bool HasAny(const std::vector<std::string>& words, std::span<const std::string_view> names);

bool IsNumber(std::string_view text);  // digits only

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_SETTINGS_DOTTED_H_
