#include "client/command_line/parser.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <set>
#include <sstream>
#include <vector>

#include <fmt/format.h>

#include "client/command_line/declarations.h"
#include "client/rpc/own_collector.h"
#include "common/edit_distance.h"
#include "common/names.h"
#include "common/project.h"
#include "common/token_file.h"

namespace statcollect::client {
namespace {

constexpr char kDescription[] = "statctl: finds the first place where two training runs diverge.";

constexpr char kFooter[] = R"(
Examples:
  statctl runs
  statctl diff --run-a base --run-b ort
  statctl help diff

Exit codes: 0 success (diff: the same within tolerance), 1 diverged, 2 no answer
(unknown run, unreachable, incomparable, wrong usage), 130 interrupted.)";

const std::map<std::string, Format> kFormats = {{"table", Format::kTable},
                                                {"json", Format::kJson},
                                                {"csv", Format::kCsv},
                                                {"markdown", Format::kMarkdown},
                                                {"ort", Format::kOrt}};
// Commands that can print the text of ONNX Runtime's tools.
const std::set<std::string> kOrtCommands = {"memory", "density"};

// `before`: "noise " below noise.
std::string NoCommand(const std::string& word, const CLI::App& parent, const std::string& before) {
  std::vector<std::string> names;
  for (const CLI::App* command : parent.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  const std::string nearest = NearestName(word, names);
  return fmt::format("no command '{}{}'{}; statctl help {}lists all", before, Printable(word, 100),
                     nearest.empty() ? "" : fmt::format(" (did you mean '{}{}'?)", before, nearest), before);
}

}  // namespace

Parser::Parser() : app_(kDescription, "statctl") {
  app_.footer(kFooter);
  app_.set_version_flag("--version", "statctl " STATCOLLECT_VERSION, "Print the version and exit");
  app_.fallthrough();
  app_.require_subcommand(0, 1);
  AddGlobals();
  // In the order of `statctl help`.
  AddRun(commands_);
  AddAb(commands_);
  AddBisect(commands_);
  AddDiff(commands_);
  AddReport(commands_);
  AddOpen(commands_);
  AddExport(commands_);
  AddSummary(commands_);
  AddMap(commands_);
  AddTwins(commands_);
  AddNoise(commands_);
  AddGolden(commands_);
  AddRuns(commands_);
  AddShow(commands_);
  AddRemove(commands_);
  AddRecord(commands_);
  AddSeries(commands_);
  AddTop(commands_);
  AddConfig(commands_);
  AddRanks(commands_);
  AddCapture(commands_);
  AddCaptures(commands_);
  AddDiffValues(commands_);
  AddScalars(commands_);
  AddMemory(commands_);
  AddDensity(commands_);
  AddExponents(commands_);
  AddEvents(commands_);
  AddWatch(commands_);
  AddKeep(commands_);
  AddCheckpoint(commands_);
  AddAudit(commands_);
  AddStatus(commands_);
  AddHelp();
  AddImport(commands_);
  AddMigrate(commands_);
}

std::optional<int> Parser::Parse(int argc, const char* const* argv) {
  if (std::any_of(argv, argv + argc, ContainsToken)) {
    return UsageError(
        "found a token among the arguments, where every user of this machine can read it; expected --token-file "
        "with the path of a file that holds it; revoke that token: statcollectord token revoke");
  }
  try {
    app_.parse(argc, argv);
  } catch (const CLI::Success& asked) {
    std::ostringstream out, err;
    app_.exit(asked, out, err);
    std::cout << out.str();
    return kExitSame;
  } catch (const CLI::ParseError& error) {
    const auto used = app_.get_subcommands();
    if (const std::string unknown = UnknownCommand(); !unknown.empty()) return UsageError(unknown);
    return UsageError(Printable(error.what(), 1000) + "; see statctl help" +
                      (used.empty() ? "" : " " + used.front()->get_name()));
  }
  if (app_.get_subcommands().empty()) {
    std::cerr << app_.help();
    return kExitNoAnswer;
  }
  const std::string command = app_.get_subcommands().front()->get_name();
  if (command == "help") return Help();
  if (format_ == "ort" && !kOrtCommands.contains(command))
    return UsageError(
        "--format ort: only memory and density can be printed that way; expected table, json, csv or "
        "markdown");
  if (ContainsToken(token_file_))
    return UsageError(
        "STATCTL_TOKEN_FILE is a token; expected the path of a file that holds it; revoke that token");
  if (!project_.empty()) {
    if (const Status named = ValidateProjectName(project_); !named.ok())
      return UsageError("--project (STATCTL_PROJECT): " + named.message());
  }
  if (const Status address = ValidateAddress(collector_); !address.ok()) return UsageError(address.message());
  auto tls = LoadTls(tls_files_);
  if (!tls.ok()) return UsageError(tls.status().message());
  tls_ = *std::move(tls);
  return std::nullopt;
}

int Parser::Run(Session& session) const {
  const CLI::App* command = app_.get_subcommands().front();
  if (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  return commands_.Of(command)(session);
}

GlobalOptions Parser::global() const {
  const CLI::App* command = app_.get_subcommands().front();
  std::string name = command->get_name();
  if (!command->get_subcommands().empty()) name += " " + command->get_subcommands().front()->get_name();
  return {
      .command = name, .format = kFormats.at(format_), .quiet = quiet_, .timeout_seconds = timeout_seconds_};
}

// Whether the command runs programs that record, to the collector that their own environment may name.
bool Parser::RunsTrainings() const {
  static const std::set<std::string> kCommands = {"run", "ab", "bisect", "twins"};
  return kCommands.contains(app_.get_subcommands().front()->get_name());
}

CollectorOptions Parser::collector() const {
  Locate locate;
  const char* const of_agents = std::getenv("STATAGENT_COLLECTOR");
  const bool named = app_.get_option("--collector")->count() > 0, trains = RunsTrainings();
  if (!named && trains && of_agents != nullptr && *of_agents != '\0')
    locate = [address = std::string(of_agents)](const auto&) -> Result<Located> {
      if (const Status valid = ValidateAddress(address, "STATAGENT_COLLECTOR"); !valid.ok()) return valid;
      return Located{.address = address};
    };
  else if (!named)
    locate = LocateOwn({.folder = data_dir_,
                        .named = app_.get_option("--data-dir")->count() > 0,
                        .make_folder = (trains && !app_.got_subcommand("twins")) || app_.got_subcommand("import"),
                        .remark = [quiet = quiet_](const std::string& sentence) {
                          if (!quiet) std::cerr << sentence + '\n';
                        }});
  return {.address = collector_,
          .locate = std::move(locate),
          .token_file = token_file_,
          .project = project_,
          .tls = tls_,
          .timeout = std::chrono::milliseconds(static_cast<std::int64_t>(timeout_seconds_ * 1000))};
}

// What to say if the first word that was left over stands where a command is expected; empty if none does.
std::string Parser::UnknownCommand() const {
  const auto used = app_.get_subcommands();
  const CLI::App& parent = used.empty() ? app_ : *used.front();
  const auto extras = app_.remaining(true);
  const auto word =
      std::find_if(extras.begin(), extras.end(), [](const auto& extra) { return !extra.starts_with("-"); });
  const bool takes_command = used.empty() || used.front()->get_require_subcommand_min() > 0;
  if (!takes_command || !parent.get_subcommands().empty() || word == extras.end()) return {};
  return NoCommand(*word, parent, used.empty() ? "" : parent.get_name() + " ");
}

// App::help would be about the command that was used.
std::string Parser::TopHelp() const {
  return app_.get_formatter()->make_help(&app_, app_.get_name(), CLI::AppFormatMode::Normal);
}

int Parser::Help() const {
  if (help_of_.empty()) {
    std::cout << TopHelp();
    return kExitSame;
  }
  const auto found =
      app_.get_subcommands([&](const CLI::App* command) { return command->get_name() == help_of_; });
  if (found.empty()) return UsageError("help: " + NoCommand(help_of_, app_, ""));
  std::cout << found.front()->help("statctl");
  return kExitSame;
}

void Parser::AddGlobals() {
  CLI::Option* collector =
      app_.add_option("--collector", collector_, "Collector's gRPC address, HOST:PORT or unix:/PATH")
          ->envname("STATCTL_COLLECTOR")
          ->capture_default_str();
  app_.add_option("--data-dir", data_dir_,
                  "Folder of the runs, if no collector is named and none answers there: statctl then\n"
                  "starts its own for as long as it needs one")
      ->envname("STATCTL_DATA_DIR")
      ->capture_default_str()
      ->excludes(collector);
  app_.add_option("--token-file", token_file_, "File with the token, if the collector requires one")
      ->envname("STATCTL_TOKEN_FILE");
  app_.add_option("--project", project_, "Project of the runs (default: the token's)")
      ->envname("STATCTL_PROJECT");
  const auto file = [this](const char* flag, const char* variable, std::string& path, const char* help) {
    app_.add_option(flag, path, help)->envname(variable);
  };
  file("--tls-ca", "STATCTL_TLS_CA", tls_files_.authorities, "ca.pem of the collector; turns TLS on");
  file("--tls-cert", "STATCTL_TLS_CERT", tls_files_.certificate, "PEM file of your own certificate");
  file("--tls-key", "STATCTL_TLS_KEY", tls_files_.key, "PEM file of its private key");
  TakesOneOf(app_.add_option("--format", format_, "Output format (ort: memory and density only)")
                 ->capture_default_str(),
             "FORMAT", {"table", "json", "csv", "markdown", "ort"});
  app_.add_option("--timeout", timeout_seconds_, "Seconds to wait for an answer (0: no limit)")
      ->check(Between(0, kTimeoutSecondsMax))
      ->capture_default_str();
  app_.add_flag("--quiet,-q", quiet_, "No progress bar or remarks; diff: verdict only");
}

void Parser::AddHelp() {
  CLI::App* help = app_.add_subcommand("help", "Explains a command, with examples");
  help->footer(std::string("\nExamples:\n  statctl help\n  statctl help diff\n") + kGlobalHelp);
  help->add_option("command", help_of_, "Name of the command");
}

}  // namespace statcollect::client
