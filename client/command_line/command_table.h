// The commands of statctl: what each is called, where it stands in the help, and what it was called
// before.
#ifndef STATCOLLECT_CLIENT_COMMAND_LINE_COMMAND_TABLE_H_
#define STATCOLLECT_CLIENT_COMMAND_LINE_COMMAND_TABLE_H_

#include <string>
#include <vector>

#include "client/command_line/command_set.h"

namespace statcollect::client {

// Adds a command of this name to the set.
using Declare = void (*)(CommandSet& commands, const std::string& name);

// A name that goes on working for one release, with a hint on standard error. It is in no list of
// commands.
struct OldName {
  std::string name;
  Declare declare = nullptr;  // nullptr: as the command itself
  std::string now;            // how it is called today; empty: by the command's name
};

struct CommandRow {
  std::string
      name;  // "diff"; of a command below the group `values`, which comes before it: "values get"
  Declare declare = nullptr;  // nullptr: Parser does, because the command is about the command line
  bool first_screen = false;  // of `statctl --help`
  std::vector<OldName> old_names = {};
};

struct CommandSection {
  std::string heading;
  std::vector<CommandRow> rows;
};

// In the order of the help.
const std::vector<CommandSection>& CommandTable();

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_COMMAND_LINE_COMMAND_TABLE_H_
