// What a command of the daemon says when it fails.
#ifndef STATCOLLECT_SERVER_DAEMON_SAY_ERROR_H_
#define STATCOLLECT_SERVER_DAEMON_SAY_ERROR_H_

#include <cstdio>
#include <string>

namespace statcollect {

// One line to standard error, in one write: other output of a terminal or a job's log never lands
// inside of it.
inline void SayError(const std::string& program, const std::string& message) {
  std::fputs((program + ": " + message + '\n').c_str(), stderr);
}

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_DAEMON_SAY_ERROR_H_
