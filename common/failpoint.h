// Places where a test can kill the daemon. Other builds contain nothing of them, not even a string:
// the tests build a second daemon with STATCOLLECT_FAILPOINTS.
//
// STATCOLLECT_FAILPOINT=name:n ends the process with SIGKILL when it passes the place of that name
// for the n-th time.
#ifndef STATCOLLECT_COMMON_FAILPOINT_H_
#define STATCOLLECT_COMMON_FAILPOINT_H_

#ifndef STATCOLLECT_FAILPOINTS

#define STATCOLLECT_FAILPOINT(name) static_cast<void>(0)
// A number that a test can override with an environment variable.
#define STATCOLLECT_TEST_SETTING(name, otherwise) (otherwise)

#else

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string>
#include <string_view>

namespace statcollect {

inline void PassFailpoint(std::string_view name) {
  struct Wanted {
    std::string name;
    std::atomic<long> left{0};
    Wanted() {
      const char* text = std::getenv("STATCOLLECT_FAILPOINT");
      if (text == nullptr) return;
      name = text;
      const auto colon = name.find(':');
      left = colon == std::string::npos ? 1 : std::atol(name.c_str() + colon + 1);
      name.resize(std::min(colon, name.size()));
    }
  };
  static Wanted wanted;
  if (name == wanted.name && wanted.left.fetch_sub(1) == 1) ::kill(::getpid(), SIGKILL);
}

inline unsigned long long TestSetting(const char* name, unsigned long long otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 0);
}

}  // namespace statcollect

#define STATCOLLECT_FAILPOINT(name) ::statcollect::PassFailpoint(name)
#define STATCOLLECT_TEST_SETTING(name, otherwise) ::statcollect::TestSetting(name, otherwise)

#endif

#endif  // STATCOLLECT_COMMON_FAILPOINT_H_
