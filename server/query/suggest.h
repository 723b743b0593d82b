// Names in messages: those closest to an unknown one, and the first of many.
#ifndef STATCOLLECT_SERVER_QUERY_SUGGEST_H_
#define STATCOLLECT_SERVER_QUERY_SUGGEST_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace statcollect::query {

// Up to `count` names, closest to `wanted` first (names that contain it count as close), joined by
// ", ", and how many more there are; "none" if there are none.
std::string Suggest(std::string_view wanted, std::vector<std::string> names, std::size_t count = 5);

// "a, b, c, ...": the first three.
std::string SomeOf(const std::vector<std::string>& names);
// ", 2 only in run (a, b)"; nothing if there are none.
std::string OnlyIn(const std::string& run, const std::vector<std::string>& names);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_SUGGEST_H_
