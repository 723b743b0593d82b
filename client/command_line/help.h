// The two overviews of statctl's commands.
#ifndef STATCOLLECT_CLIENT_COMMAND_LINE_HELP_H_
#define STATCOLLECT_CLIENT_COMMAND_LINE_HELP_H_

#include <string>

#include <CLI/CLI.hpp>

namespace statcollect::client {

// What a person needs who has never used it: fewer than 40 lines of at most 80 columns. `app` is
// statctl's parser.
std::string FirstScreen(const CLI::App& app);
// Every command, and the global options.
std::string FullHelp(const CLI::App& app);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_COMMAND_LINE_HELP_H_
