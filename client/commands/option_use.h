// Options of a command that answers several questions: each fits some of them only.
#ifndef STATCOLLECT_CLIENT_COMMANDS_OPTION_USE_H_
#define STATCOLLECT_CLIENT_COMMANDS_OPTION_USE_H_

#include <initializer_list>
#include <string>

#include "common/status.h"

namespace statcollect::client {

struct OptionUse {
  const char* option;  // "--stat"
  bool given, fits;
  const char* with;  // what it is for
};

// kInvalidArgument names the first option that was given and does not fit.
inline Status CheckOptionUse(std::initializer_list<OptionUse> uses) {
  for (const OptionUse& use : uses) {
    if (use.given && !use.fits)
      return {Code::kInvalidArgument, std::string(use.option) + ": expected only with " + use.with};
  }
  return Status::Ok();
}

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_COMMANDS_OPTION_USE_H_
