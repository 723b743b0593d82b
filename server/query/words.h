// Words for sentences of answers.
#ifndef STATCOLLECT_SERVER_QUERY_WORDS_H_
#define STATCOLLECT_SERVER_QUERY_WORDS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace statcollect::query {

// "0-3, 7"; "none". The first eight runs of numbers, then "and others". Precondition: ascending.
std::string RanksText(const std::vector<std::uint32_t>& ranks);

// "rank 3", "ranks 0-3, 7" for the noun "rank".
std::string RanksNamed(const char* noun, const std::vector<std::uint32_t>& ranks);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_WORDS_H_
