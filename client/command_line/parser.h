// statctl's command line: global options, help, and which command runs.
#ifndef STATCOLLECT_CLIENT_COMMAND_LINE_PARSER_H_
#define STATCOLLECT_CLIENT_COMMAND_LINE_PARSER_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "client/command_line/command_set.h"
#include "client/command_line/command_table.h"
#include "client/command_line/completion.h"
#include "client/commands/session.h"
#include "common/data_folder.h"

namespace statcollect::client {

class Parser {
 public:
  Parser();

  // The exit code, if there is nothing to run: help, version, an error. Prints those.
  std::optional<int> Parse(int argc, const char* const* argv);

  // Precondition of these: Parse has returned nothing.
  int Run(Session& session) const;
  GlobalOptions global() const;
  CollectorOptions collector() const;

 private:
  bool RunsTrainings() const;
  void AddGlobals();
  void AddRow(const CommandRow& row);
  void AddHelp();
  void AddCompletion();
  int Help() const;
  std::string UnknownCommand() const;
  std::string UnknownOption() const;

  CLI::App app_;
  Commands commands_;
  std::map<const CLI::App*, std::string> now_;  // of an old name: how the command is called
  std::string collector_ = kDefaultAddress, data_dir_ = std::string("./") + kDataFolder,
              token_file_, project_, format_ = "table";
  tls::Files tls_files_;
  tls::Material tls_;  // what Parse read from them
  double timeout_seconds_ = 0;
  bool quiet_ = false;
  std::vector<std::string> help_of_;  // a command, or empty
  bool help_all_ = false;
  CompletionOptions completion_;
};

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_COMMAND_LINE_PARSER_H_
