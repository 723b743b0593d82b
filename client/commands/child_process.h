// A program that statctl runs for the user, in the foreground.
#ifndef STATCOLLECT_CLIENT_COMMANDS_CHILD_PROCESS_H_
#define STATCOLLECT_CLIENT_COMMANDS_CHILD_PROCESS_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/status.h"

namespace statcollect::client {

// Names and values that the program gets beside statctl's own environment, whose entries they
// replace.
using Variables = std::vector<std::pair<std::string, std::string>>;

enum class ChildOutput {
  kAsIs,      // statctl's own streams
  kToErrors,  // both to statctl's standard error, because standard output is for statctl's answer
  kKept,      // the last 64 KiB of both are kept instead
  kRead,      // standard output is kept, the errors are dropped
};

struct ChildEnd {
  int code = 0;      // as a shell has it: 128 + the signal that ended it
  std::string tail;  // what was kept of its output
};

// Runs `command`, found in PATH, to its end, in `folder`; empty: statctl's own. It has the
// terminal: statctl's standard input, and Ctrl-C. A SIGTERM or SIGHUP of statctl is passed on to
// it. kNotFound, kUnknown: it cannot be started. Precondition: the command has a word; one at a
// time.
Result<ChildEnd> RunChild(const std::vector<std::string>& command, const Variables& variables,
                          ChildOutput output, const std::string& folder = {});

// For a program in another folder; empty stays empty.
std::string AbsolutePath(const std::string& path);

// What a program prints that ends well; nothing if it does not, or cannot be started.
std::optional<std::string> OutputOf(const std::vector<std::string>& command);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_COMMANDS_CHILD_PROCESS_H_
