#ifndef STATCOLLECT_SERVER_QUERY_NUMBER_TEXT_H_
#define STATCOLLECT_SERVER_QUERY_NUMBER_TEXT_H_

#include <string>

namespace statcollect::query {

// Two significant digits: "1.3e-6", "12", "0.5".
std::string ShortNumber(double value);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_NUMBER_TEXT_H_
