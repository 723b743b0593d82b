#ifndef STATCOLLECT_SERVER_QUERY_NUMBER_TEXT_H_
#define STATCOLLECT_SERVER_QUERY_NUMBER_TEXT_H_

#include <cstdint>
#include <map>
#include <string>

namespace statcollect::query {

// Two significant digits: "1.3e-6", "12", "0.5".
std::string ShortNumber(double value);

// "0.8 times that in base on rank 0 and 1.2 times on rank 1"; of the first four ranks.
// Precondition: there is one.
std::string FactorsText(const std::map<std::uint32_t, double>& by_rank, const std::string& run);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_NUMBER_TEXT_H_
