// What the declarations of commands are made with: a set of commands, each with the options that it
// is called with.
#ifndef STATCOLLECT_CLIENT_COMMAND_LINE_COMMAND_SET_H_
#define STATCOLLECT_CLIENT_COMMAND_LINE_COMMAND_SET_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "client/commands/session.h"

namespace statcollect::client {

inline constexpr char kGlobalHelp[] =
    "\nGlobal options, before or after the command: --collector HOST:PORT, --format, --timeout, "
    "--quiet,\n"
    "--token-file, --tls-ca, --tls-cert, --tls-key (statctl help --all).";

// Runs a command; returns the exit code.
using Command = std::function<int(Session&)>;

using Commands = std::map<const CLI::App*, Command>;

// The commands below one parser, which is that of statctl or of a group such as `values`.
class CommandSet {
 public:
  // Both must outlive the set; `commands` gets each command that is added.
  CommandSet(CLI::App& app, Commands& commands) : app_(app), commands_(commands) {}

  // Adds a command. Returns its parser and the options that `run` will be called with; both live as
  // long as the set.
  template <typename Options>
  std::pair<CLI::App*, Options&> Add(const std::string& name, const std::string& description,
                                     const std::string& examples,
                                     int (*run)(Session&, const Options&)) {
    return AddTo(AddGroup(name, description, examples), run);
  }
  // Adds a name without a command of its own: AddSub, or another set, adds those below it.
  CLI::App* AddGroup(const std::string& name, const std::string& description,
                     const std::string& examples) {
    CLI::App* app = app_.add_subcommand(name, description);
    app->footer("\nExamples:\n" + examples + kGlobalHelp);
    return app;
  }
  // Adds a command below a group.
  template <typename Options>
  std::pair<CLI::App*, Options&> AddSub(CLI::App* group, const std::string& name,
                                        const std::string& description,
                                        int (*run)(Session&, const Options&)) {
    return AddTo(group->add_subcommand(name, description), run);
  }

 private:
  template <typename Options>
  std::pair<CLI::App*, Options&> AddTo(CLI::App* app, int (*run)(Session&, const Options&)) {
    const auto options = std::make_shared<Options>();
    commands_[app] = [options, run](Session& session) { return run(session, *options); };
    return {app, *options};
  }

  CLI::App& app_;
  Commands& commands_;
};

inline constexpr double kTimeoutSecondsMax = 1e6;
inline constexpr double kToleranceMax = 1e300;

// A number, and not NaN, which CLI::Range lets through.
CLI::Validator Between(double low, double high);
// Whole numbers from 0: CLI11 takes -1 for the largest one.
CLI::Validator StepNumber();
CLI::Validator Index();  // a rank, micro-batch or call

// An option with a fixed set of values. `word` stands for a value in the help, as STATE; another
// value is refused before the command runs, with the nearest one and all of them.
void TakesOneOf(CLI::Option* option, const std::string& word, std::vector<std::string> values);
// The same, where `parse` (text -> Result) knows the values and says what is wrong.
template <typename Parse>
void TakesParsed(CLI::Option* option, const std::string& word, const Parse& parse) {
  const auto check = [parse](const std::string& text) { return parse(text).status().message(); };
  option->type_name(word)->check(CLI::Validator(check, ""));
}

// Options that many commands share, each with one wording.
void AddRunName(CLI::App* app, std::string& run);  // RUN, required
// Each takes a list. The first spelling is the documented one: help, errors and pages use it.
CLI::Option* AddRankFilter(CLI::App* app, std::string& ranks);  // --rank, --ranks
CLI::Option* AddStepFilter(CLI::App* app, std::string& steps);  // --step, --steps
void AddKindFilter(CLI::App* app, std::string& kinds,
                   const std::string& such);  // --kind, --kinds; `such`: examples
template <typename Number>
void AddRowLimit(CLI::App* app, Number& top, const std::string& description) {  // --top
  app->add_option("--top", top, description)
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
}

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_COMMAND_LINE_COMMAND_SET_H_
