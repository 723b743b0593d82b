#include "client/command_line/completion.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "client/command_line/command_table.h"
#include "common/names.h"

namespace statcollect::client {
namespace {

// Where nothing fits, the shells go on with names of files.
constexpr char kBash[] = R"sh(_statctl() {
  local words=("${COMP_WORDS[@]:0:COMP_CWORD+1}")
  mapfile -t COMPREPLY < <(statctl completion bash -- "${words[@]}" 2>/dev/null | cut -f1)
}
complete -o bashdefault -o default -F _statctl statctl)sh";
constexpr char kZsh[] = R"sh(#compdef statctl
_statctl() {
  local -a found
  found=(${(f)"$(statctl completion zsh -- "${(@)words[1,CURRENT]}" 2>/dev/null |
    sed -e 's/:/\\:/g' -e 's/\t/:/')"})
  if (( $#found )); then _describe statctl found; else _files; fi
}
compdef _statctl statctl)sh";
constexpr char kFish[] = R"sh(function __statctl_complete
  set -l words (commandline -opc) (commandline -ct)
  set -l found (statctl completion fish -- $words 2>/dev/null)
  if count $found >/dev/null; printf '%s\n' $found; else; __fish_complete_path $words[-1]; end
end
complete -c statctl -k -f -a '(__statctl_complete)')sh";

// Options and arguments whose value is the name of a run that exists.
const std::set<std::string> kRunNames = {"run",     "run_a",     "run_b", "--run-a",
                                         "--run-b", "--against", "--like"};
// Their run is a new one, or of another place.
const std::set<std::string> kNewRun = {"run"};

struct Choice {
  std::string word, description;
};

// What the words so far, without the last, have led to.
struct Place {
  const CLI::App* command;
  const CLI::Option* value_of = nullptr;  // the last word is its value
  std::size_t arguments = 0;              // of the command, before the last word
  bool over = false;                      // what comes next is a command of somebody else
};

const CLI::Option* FindOption(const CLI::App& app, const CLI::App& command,
                              const std::string& word) {
  for (const CLI::App* parser : {&command, &app}) {
    for (const CLI::Option* option : parser->get_options()) {
      const auto& names = option->get_lnames();
      const auto& letters = option->get_snames();
      const bool is_long = word.starts_with("--") &&
                           std::find(names.begin(), names.end(), word.substr(2)) != names.end();
      const bool is_letter = word.size() == 2 && std::find(letters.begin(), letters.end(),
                                                           word.substr(1)) != letters.end();
      if (is_long || is_letter) return option;
    }
  }
  return nullptr;
}

const CLI::App* FindCommand(const CLI::App& parent, const std::string& name) {
  for (const CLI::App* command : parent.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_name() == name) return command;
  }
  return nullptr;
}

Place Follow(const CLI::App& app, const std::vector<std::string>& words) {
  Place place{.command = &app};
  for (std::size_t i = 1; i + 1 < words.size() && !place.over; ++i) {
    const std::string& word = words[i];
    if (std::exchange(place.value_of, nullptr) != nullptr) continue;
    if (word == "--") {
      place.over = true;
    } else if (word.starts_with("-")) {
      const CLI::Option* option = FindOption(app, *place.command, word);
      if (option != nullptr && option->get_items_expected_max() > 0) place.value_of = option;
    } else if (const CLI::App* below =
                   place.arguments == 0 ? FindCommand(*place.command, word) : nullptr) {
      place.command = below;
    } else {
      ++place.arguments;
    }
  }
  return place;
}

std::vector<Choice> CommandsBelow(const CLI::App& app, const CLI::App& parent) {
  std::set<std::string> old;
  for (const CommandSection& section : CommandTable()) {
    for (const CommandRow& row : section.rows) {
      for (const OldName& name : row.old_names) old.insert(name.name);
    }
  }
  std::vector<Choice> found;
  for (const CLI::App* command : parent.get_subcommands([](const CLI::App*) { return true; })) {
    if (&parent != &app || !old.contains(command->get_name()))
      found.push_back({command->get_name(), command->get_description()});
  }
  return found;
}

std::vector<Choice> OptionsOf(const CLI::App& app, const CLI::App& command) {
  std::vector<Choice> found;
  std::set<std::string> seen;
  for (const CLI::App* parser : {&command, &app}) {
    for (const CLI::Option* option : parser->get_options()) {
      if (option->get_lnames().empty() || !seen.insert(option->get_lnames().front()).second)
        continue;
      const std::string& text = option->get_description();
      found.push_back({"--" + option->get_lnames().front(), text.substr(0, text.find('\n'))});
    }
  }
  return found;
}

// Of a collector that answers at once, or none.
std::vector<Choice> RunNames(Session& session) {
  const auto response = session.collector().ListRuns();
  if (!response.ok()) return {};
  std::vector<Choice> found;
  for (const v1::RunSummary& run : response->runs())
    found.push_back({Printable(run.run()), fmt::format("{}, {} steps", run.state(), run.steps())});
  return found;
}

bool IsRun(const CLI::Option& option) { return kRunNames.contains(option.get_name()); }

const CLI::Option* Argument(const CLI::App& command, std::size_t index) {
  std::vector<const CLI::Option*> arguments;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_positional()) arguments.push_back(option);
  }
  if (arguments.empty()) return nullptr;
  if (index < arguments.size()) return arguments[index];
  return arguments.back()->get_items_expected_max() > 1 ? arguments.back()
                                                        : nullptr;  // it takes all that follow
}

std::vector<Choice> Choices(Session& session, const CLI::App& app,
                            const std::vector<std::string>& words) {
  const Place place = Follow(app, words);
  if (place.over) return {};
  if (place.value_of != nullptr)
    return IsRun(*place.value_of) ? RunNames(session) : std::vector<Choice>();
  if (words.back().starts_with("-")) return OptionsOf(app, *place.command);
  if (place.arguments == 0 &&
      !place.command->get_subcommands([](const CLI::App*) { return true; }).empty())
    return CommandsBelow(app, *place.command);
  if (place.command->get_name() == "help") return CommandsBelow(app, app);
  const CLI::Option* argument = Argument(*place.command, place.arguments);
  const bool names_run =
      argument != nullptr && IsRun(*argument) && !kNewRun.contains(place.command->get_name());
  return names_run ? RunNames(session) : std::vector<Choice>();
}

}  // namespace

int Complete(Session& session, const CLI::App& app, const CompletionOptions& options) {
  if (options.words.empty()) {
    session.PrintLine(options.shell == "bash" ? kBash : options.shell == "zsh" ? kZsh : kFish);
    return kExitSame;
  }
  for (const Choice& choice : Choices(session, app, options.words)) {
    if (choice.word.starts_with(options.words.back()))
      session.PrintLine(choice.word + "\t" + choice.description);
  }
  return kExitSame;
}

}  // namespace statcollect::client
