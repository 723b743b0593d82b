// What a report says of what makes its comparison valid, as text.
#ifndef STATCOLLECT_TESTS_SERVER_QUERY_PREMISES_H_
#define STATCOLLECT_TESTS_SERVER_QUERY_PREMISES_H_

#include <string>
#include <vector>

#include "server/query/reports.h"

namespace statcollect::testing {

// "steps: 0..2 in both (3)": those that hold, or those that do not.
inline std::vector<std::string> Premises(const query::DiffReport& report, bool ok) {
  std::vector<std::string> texts;
  for (const query::PremiseCheck& check : report.comparable) {
    if (check.ok == ok)
      texts.push_back(std::string(query::Name(check.premise)) + ": " + check.detail);
  }
  return texts;
}
inline std::vector<std::string> Holding(const query::DiffReport& report) {
  return Premises(report, true);
}
inline std::vector<std::string> Broken(const query::DiffReport& report) {
  return Premises(report, false);
}

}  // namespace statcollect::testing

#endif  // STATCOLLECT_TESTS_SERVER_QUERY_PREMISES_H_
