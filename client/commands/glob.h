// Shell patterns for run names.
#ifndef STATCOLLECT_CLIENT_COMMANDS_GLOB_H_
#define STATCOLLECT_CLIENT_COMMANDS_GLOB_H_

#include <fnmatch.h>

#include <string>

namespace statcollect::client {

inline bool IsGlob(const std::string& text) {
  return text.find_first_of("*?[") != std::string::npos;
}
// Supports *, ? and [abc]; "/" is an ordinary character.
inline bool MatchesGlob(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
}

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_COMMANDS_GLOB_H_
