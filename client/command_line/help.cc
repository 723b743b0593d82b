#include "client/command_line/help.h"

#include <cstddef>

#include <fmt/format.h>

#include "client/command_line/command_table.h"

namespace statcollect::client {
namespace {

constexpr char kStart[] = R"(statctl finds the first place where two training runs part ways.

Record your own script twice, without changing a line of it, and compare:
  statctl run base -- python train.py
  statctl run new -- python train.py --lr 1e-3
  statctl diff base new

A run is one training. At each step it has the loss and other scalars, and the
statistics of every tensor. The verdict of diff names the first step and the
first tensor that differ, and why; the page shows the same in a browser.
)";

constexpr char kExitCodes[] = R"(
Exit codes: 0 success (diff: the same within tolerance), 1 diverged, 2 no answer
(unknown run, unreachable, incomparable, wrong usage), 130 interrupted.
)";

std::string ListCommands(const CLI::App& app, bool all) {
  std::string text;
  for (const CommandSection& section : CommandTable()) {
    std::string lines;
    for (const CommandRow& row : section.rows) {
      if (!all && !row.first_screen) continue;
      if (row.name.find(' ') != std::string::npos) continue;  // its group's help lists it
      lines +=
          fmt::format("  {:<10}  {}\n", row.name, app.get_subcommand(row.name)->get_description());
    }
    if (!lines.empty()) text += "\n" + section.heading + "\n" + lines;
  }
  return text;
}

std::size_t CountCommands() {
  std::size_t count = 0;
  for (const CommandSection& section : CommandTable()) {
    for (const CommandRow& row : section.rows)
      count += row.name.find(' ') == std::string::npos ? 1 : 0;
  }
  return count;
}

}  // namespace

std::string FirstScreen(const CLI::App& app) {
  return kStart + ListCommands(app, false) +
         fmt::format(
             "\nstatctl help COMMAND has examples; statctl help --all lists all {} commands.\n",
             CountCommands()) +
         kExitCodes;
}

std::string FullHelp(const CLI::App& app) {
  const CLI::Formatter formatter;
  return app.get_description() + "\n\nUsage: statctl COMMAND [ARGUMENTS] [OPTIONS]\n" +
         ListCommands(app, true) + formatter.make_groups(&app, CLI::AppFormatMode::Normal) +
         kExitCodes;
}

}  // namespace statcollect::client
