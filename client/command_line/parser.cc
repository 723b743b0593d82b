#include "client/command_line/parser.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <set>
#include <sstream>
#include <vector>

#include <fmt/format.h>

#include "client/command_line/command_table.h"
#include "client/command_line/completion.h"
#include "client/command_line/help.h"
#include "client/rpc/own_collector.h"
#include "common/choice.h"
#include "common/edit_distance.h"
#include "common/names.h"
#include "common/project.h"
#include "common/token_file.h"

namespace statcollect::client {
namespace {

constexpr char kDescription[] = "statctl: finds the first place where two training runs diverge.";

const std::map<std::string, Format> kFormats = {{"table", Format::kTable},
                                                {"json", Format::kJson},
                                                {"csv", Format::kCsv},
                                                {"markdown", Format::kMarkdown},
                                                {"ort", Format::kOrt}};
// Commands that can print the text of ONNX Runtime's tools; show with --memory or --padding.
const std::set<std::string> kOrtCommands = {"memory", "density", "show"};

// `before`: "noise " below noise.
std::string NoCommand(const std::string& word, const CLI::App& parent, const std::string& before) {
  std::vector<std::string> names;
  for (const CLI::App* command : parent.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  const std::string nearest = NearestName(word, names);
  return fmt::format("no command '{}{}'{}; statctl help {}lists all", before, Printable(word, 100),
                     nearest.empty() ? "" : fmt::format(" (did you mean '{}{}'?)", before, nearest),
                     before);
}

// What to say of "run -- COMMAND", whose first word would be taken for the name; empty otherwise.
std::string WithoutName(int argc, const char* const* argv) {
  for (int i = 1; i + 1 < argc && std::string(argv[i]) != "--"; ++i) {
    const std::string word = argv[i];
    if ((word == "run" || word == "twins") && std::string(argv[i + 1]) == "--")
      return fmt::format(
          "{}: found no name of the run; expected one, such as: statctl {} base -- COMMAND", word,
          word);
  }
  return {};
}

}  // namespace

Parser::Parser() : app_(kDescription, "statctl") {
  app_.set_version_flag("--version", "statctl " STATCOLLECT_VERSION, "Print the version and exit");
  app_.fallthrough();
  app_.require_subcommand(0, 1);
  AddGlobals();
  for (const CommandSection& section : CommandTable()) {
    for (const CommandRow& row : section.rows) AddRow(row);
  }
  AddHelp();
  AddCompletion();
}

void Parser::AddRow(const CommandRow& row) {
  if (row.declare == nullptr) return;
  const std::size_t blank = row.name.find(' ');
  const bool below = blank != std::string::npos;
  CommandSet commands(below ? *app_.get_subcommand(row.name.substr(0, blank)) : app_, commands_);
  row.declare(commands, row.name.substr(below ? blank + 1 : 0));
  CommandSet top(app_, commands_);
  for (const OldName& old : row.old_names) {
    (old.declare != nullptr ? old.declare : row.declare)(top, old.name);
    now_[app_.get_subcommand(old.name)] = old.now.empty() ? row.name : old.now;
  }
}

std::optional<int> Parser::Parse(int argc, const char* const* argv) {
  if (std::any_of(argv, argv + argc, ContainsToken)) {
    return UsageError(
        "found a token among the arguments, where every user of this machine can read it; expected "
        "--token-file "
        "with the path of a file that holds it; revoke that token: statcollectord token revoke");
  }
  if (const std::string nameless = WithoutName(argc, argv); !nameless.empty())
    return UsageError(nameless);
  try {
    app_.parse(argc, argv);
  } catch (const CLI::CallForHelp& asked) {
    if (const std::string unknown = UnknownCommand(); !unknown.empty()) return UsageError(unknown);
    std::cout << (app_.get_subcommands().empty() ? FirstScreen(app_) : app_.help());
    return kExitSame;
  } catch (const CLI::Success& asked) {
    std::ostringstream out, err;
    app_.exit(asked, out, err);
    std::cout << out.str();
    return kExitSame;
  } catch (const CLI::ParseError& error) {
    const auto used = app_.get_subcommands();
    if (const std::string unknown = UnknownCommand(); !unknown.empty()) return UsageError(unknown);
    std::string unknown = UnknownOption();
    const bool separated = std::any_of(
        argv, argv + argc, [](const char* word) { return std::string_view(word) == "--"; });
    const bool left_over = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError);
    if (left_over && unknown.empty() && !used.empty() && RunsTrainings() && !separated)
      unknown = "found no '--'; expected one before the command to run";
    return UsageError((unknown.empty() ? Printable(error.what(), 1000) : unknown) +
                      "; see statctl help" + (used.empty() ? "" : " " + used.front()->get_name()));
  }
  if (app_.get_subcommands().empty()) {
    std::cerr << FirstScreen(app_);
    return kExitNoAnswer;
  }
  const std::string command = app_.get_subcommands().front()->get_name();
  if (command == "help") return Help();
  if (format_ == "ort" && !kOrtCommands.contains(command))
    return UsageError(
        "--format ort: only show --memory and --padding can be printed that way; expected table, "
        "json, csv or "
        "markdown");
  if (ContainsToken(token_file_))
    return UsageError(
        "STATCTL_TOKEN_FILE is a token; expected the path of a file that holds it; revoke that "
        "token");
  if (!project_.empty()) {
    if (const Status named = ValidateProjectName(project_); !named.ok())
      return UsageError("--project (STATCTL_PROJECT): " + named.message());
  }
  if (const Status address = ValidateAddress(collector_); !address.ok())
    return UsageError(address.message());
  auto tls = LoadTls(tls_files_);
  if (!tls.ok()) return UsageError(tls.status().message());
  tls_ = *std::move(tls);
  return std::nullopt;
}

int Parser::Run(Session& session) const {
  const CLI::App* command = app_.get_subcommands().front();
  if (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  const int code = commands_.at(command)(session);
  const auto now = now_.find(command);
  const bool answered = code == kExitSame || code == kExitDiverged;
  if (now != now_.end() && answered && session.options().format != Format::kJson)
    session.Remark(
        fmt::format("statctl: {} is now called: statctl {}", command->get_name(), now->second));
  return code;
}

GlobalOptions Parser::global() const {
  const CLI::App* command = app_.get_subcommands().front();
  std::string name = command->get_name();
  if (!command->get_subcommands().empty())
    name += " " + command->get_subcommands().front()->get_name();
  return {.command = name,
          .format = kFormats.at(format_),
          .quiet = quiet_,
          .data_dir = data_dir_,
          .tls_files = tls_files_,
          .timeout_seconds = timeout_seconds_};
}

// Whether the command runs programs that record, to the collector that their own environment may
// name.
bool Parser::RunsTrainings() const {
  static const std::set<std::string> kCommands = {"run", "ab", "bisect", "twins"};
  return kCommands.contains(app_.get_subcommands().front()->get_name());
}

CollectorOptions Parser::collector() const {
  Locate locate;
  const char* const of_agents = std::getenv("STATAGENT_COLLECTOR");
  const bool named = app_.get_option("--collector")->count() > 0, trains = RunsTrainings();
  const bool completes = app_.got_subcommand("completion");
  const bool imports =
      app_.got_subcommand("import") || app_.get_subcommand("move")->got_subcommand("import");
  if (!named && trains && of_agents != nullptr && *of_agents != '\0')
    locate = [address = std::string(of_agents)](const auto&) -> Result<Located> {
      if (const Status valid = ValidateAddress(address, "STATAGENT_COLLECTOR"); !valid.ok())
        return valid;
      return Located{.address = address};
    };
  else if (!named)
    locate = LocateOwn({.folder = data_dir_,
                        .named = app_.get_option("--data-dir")->count() > 0,
                        .start = !completes,
                        .make_folder = (trains && !app_.got_subcommand("twins")) || imports,
                        .remark = [quiet = quiet_](const std::string& sentence) {
                          if (!quiet) std::cerr << sentence + '\n';
                        }});
  // A shell that waits for a word does not wait for long.
  const double seconds = completes && timeout_seconds_ == 0 ? 1 : timeout_seconds_;
  return {.address = collector_,
          .locate = std::move(locate),
          .token_file = token_file_,
          .project = project_,
          .tls = tls_,
          .timeout = std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000))};
}

// What to say if the first word that was left over stands where a command is expected; empty if
// none does.
std::string Parser::UnknownCommand() const {
  const auto used = app_.get_subcommands();
  const CLI::App& parent = used.empty() ? app_ : *used.front();
  const auto extras = app_.remaining(true);
  const auto word = std::find_if(extras.begin(), extras.end(),
                                 [](const auto& extra) { return !extra.starts_with("-"); });
  const bool takes_command = used.empty() || used.front()->get_require_subcommand_min() > 0;
  if (!takes_command || !parent.get_subcommands().empty() || word == extras.end()) return {};
  return NoCommand(*word, parent, used.empty() ? "" : parent.get_name() + " ");
}

// What to say of the first option that was left over; empty if there is none.
std::string Parser::UnknownOption() const {
  const auto extras = app_.remaining(true);
  const auto found = std::find_if(extras.begin(), extras.end(), [](const auto& extra) {
    return extra.starts_with("--") && extra != "--";
  });
  if (found == extras.end()) return {};
  const std::string option = found->substr(0, found->find('='));
  std::vector<std::string> names;
  for (const CLI::App* of = &app_; of != nullptr;
       of = of->get_subcommands().empty() ? nullptr : of->get_subcommands().front()) {
    for (const CLI::Option* known : of->get_options()) {
      for (const std::string& name : known->get_lnames()) names.push_back("--" + name);
    }
  }
  const std::string nearest = NearestName(option, names);
  return fmt::format("no option '{}'{}", Printable(option, 100),
                     nearest.empty() ? "" : fmt::format(" (did you mean '{}'?)", nearest));
}

int Parser::Help() const {
  if (help_of_.empty() && !help_all_) {
    std::cout << FirstScreen(app_);
    return kExitSame;
  }
  if (help_all_ || help_of_ == std::vector<std::string>{"all"}) {
    std::cout << FullHelp(app_);
    return kExitSame;
  }
  const CLI::App* command = &app_;
  std::string path = "statctl", before;
  for (const std::string& name : help_of_) {
    const auto found =
        command->get_subcommands([&](const CLI::App* below) { return below->get_name() == name; });
    if (found.empty()) return UsageError("help: " + NoCommand(name, *command, before));
    command = found.front();
    if (name != help_of_.back()) path += " " + name;
    before += name + " ";
  }
  std::cout << command->help(path);
  return kExitSame;
}

void Parser::AddGlobals() {
  CLI::Option* collector = app_.add_option("--collector", collector_,
                                           "Collector's gRPC address, HOST:PORT or unix:/PATH")
                               ->envname("STATCTL_COLLECTOR")
                               ->capture_default_str();
  app_.add_option(
          "--data-dir", data_dir_,
          "Folder of the runs, if no collector is named and none answers there: statctl then\n"
          "starts its own for as long as it needs one")
      ->check(OptionAsPath)
      ->envname("STATCTL_DATA_DIR")
      ->capture_default_str()
      ->excludes(collector);
  app_.add_option("--token-file", token_file_, "File with the token, if the collector requires one")
      ->envname("STATCTL_TOKEN_FILE");
  app_.add_option("--project", project_, "Project of the runs (default: the token's)")
      ->envname("STATCTL_PROJECT");
  const auto file = [this](const char* flag, const char* variable, std::string& path,
                           const char* help) {
    app_.add_option(flag, path, help)->envname(variable);
  };
  file("--tls-ca", "STATCTL_TLS_CA", tls_files_.authorities,
       "ca.pem of the collector; turns TLS on");
  file("--tls-cert", "STATCTL_TLS_CERT", tls_files_.certificate,
       "PEM file of your own certificate");
  file("--tls-key", "STATCTL_TLS_KEY", tls_files_.key, "PEM file of its private key");
  TakesOneOf(app_.add_option("--format", format_, "Output format (ort: show --memory, --padding)")
                 ->capture_default_str(),
             "FORMAT", {"table", "json", "csv", "markdown", "ort"});
  app_.add_option("--timeout", timeout_seconds_, "Seconds to wait for an answer (0: no limit)")
      ->check(Between(0, kTimeoutSecondsMax))
      ->capture_default_str();
  app_.add_flag("--quiet,-q", quiet_, "No progress bar or remarks; diff: verdict only");
}

void Parser::AddHelp() {
  CLI::App* help = app_.add_subcommand("help", "Explains a command, with examples");
  help->footer(
      std::string("\nExamples:\n  statctl help\n  statctl help diff\n  statctl help values get\n"
                  "  statctl help --all       # every command, and the global options\n") +
      kGlobalHelp);
  help->add_option("command", help_of_, "Name of the command");
  help->add_flag("--all", help_all_, "List every command, and the global options");
}

void Parser::AddCompletion() {
  CLI::App* completion =
      app_.add_subcommand("completion", "Prints a script that completes commands in your shell");
  completion->footer(
      std::string("\nExamples:\n"
                  "  statctl completion bash >> ~/.bashrc\n"
                  "  statctl completion zsh > ~/.zfunc/_statctl     # a folder of fpath\n"
                  "  statctl completion fish > ~/.config/fish/completions/statctl.fish\n"
                  "It completes commands, options and names of runs. It starts no collector.\n") +
      kGlobalHelp);
  TakesOneOf(completion->add_option("shell", completion_.shell, "bash, zsh or fish")->required(),
             "SHELL", {"bash", "zsh", "fish"});
  completion->add_option("words", completion_.words,
                         "After --: print how the last of these words may go on");
  commands_[completion] = [this](Session& session) { return Complete(session, app_, completion_); };
}

}  // namespace statcollect::client
