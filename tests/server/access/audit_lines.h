// The lines of an audit log, for tests.
#ifndef STATCOLLECT_TESTS_SERVER_ACCESS_AUDIT_LINES_H_
#define STATCOLLECT_TESTS_SERVER_ACCESS_AUDIT_LINES_H_

#include <fstream>
#include <string>
#include <vector>

#include "server/access/audit_log.h"

namespace statcollect::testing {

// Of all its files, oldest first.
inline std::vector<std::string> AuditLines(const std::string& path) {
  std::vector<std::string> lines;
  for (int number = access::AuditLog::kFilesKept; number >= 0; --number) {
    std::ifstream file(number == 0 ? path : path + "." + std::to_string(number));
    for (std::string line; std::getline(file, line);) lines.push_back(line);
  }
  return lines;
}

}  // namespace statcollect::testing

#endif  // STATCOLLECT_TESTS_SERVER_ACCESS_AUDIT_LINES_H_
