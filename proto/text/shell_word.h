// Text that is printed as a part of a command.
#ifndef STATCOLLECT_PROTO_TEXT_SHELL_WORD_H_
#define STATCOLLECT_PROTO_TEXT_SHELL_WORD_H_

#include <string>

#include "common/names.h"

namespace statcollect {

// `text` as one word of a POSIX shell, quoted only if it needs to be. Control characters are
// escaped.
inline std::string ShellWord(const std::string& text) {
  constexpr char kPlain[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-/@:=,+";
  std::string printable = Printable(text);
  if (!printable.empty() && printable.find_first_not_of(kPlain) == std::string::npos)
    return printable;
  std::string quoted = "'";
  for (const char c : printable) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace statcollect

#endif  // STATCOLLECT_PROTO_TEXT_SHELL_WORD_H_
