// Completion of command lines by shells: a script for each shell asks statctl itself what may come
// next.
#ifndef STATCOLLECT_CLIENT_COMMAND_LINE_COMPLETION_H_
#define STATCOLLECT_CLIENT_COMMAND_LINE_COMPLETION_H_

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "client/commands/session.h"

namespace statcollect::client {

struct CompletionOptions {
  std::string shell;  // bash, zsh, fish
  std::vector<std::string>
      words;  // of the command line, up to the one to complete; empty: print the script
};

// `app`: statctl's parser.
int Complete(Session& session, const CLI::App& app, const CompletionOptions& options);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_COMMAND_LINE_COMPLETION_H_
