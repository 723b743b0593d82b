// statcollect-bench: load for the collector, and what bounds it. JSON on standard output, a table
// on standard error.
#include <malloc.h>

#include <csignal>
#include <exception>
#include <iostream>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "bench/ingest/commands.h"

namespace statcollect::bench {
namespace {

constexpr char kFooter[] = R"(
Examples:
  statcollect-bench ingest --spawn build/release/bin/statcollectord --data-dir /tmp/d --streams 8
  statcollect-bench ingest --collector 127.0.0.1:7433 --streams 256 --seconds 10 --sketch 0
  statcollect-bench limits --dir /tmp/limits
  statcollect-bench queries --spawn build/release/bin/statcollectord --data-dir /tmp/d
  statcollect-bench memory --dir /tmp/empty --steps 62500
  statcollect-bench crowd --spawn build/release/bin/statcollectord --data-dir /tmp/d --seconds 20

Prints one JSON object on standard output and a table on standard error.
Exit code 1: the measurement failed, the message says why; 2: wrong arguments.)";

int Run(int argc, char** argv) {
  CLI::App app("statcollect-bench: load for statcollectord, and the limits of what carries it",
               "statcollect-bench");
  app.footer(kFooter);
  app.require_subcommand(1);
  std::vector<std::pair<CLI::App*, Command>> commands;
  for (Command (*add)(CLI::App&) :
       {AddIngest, AddLimits, AddQueries, AddCrowd, AddMemory, AddDump, AddAcknowledge}) {
    Command command = add(app);
    commands.emplace_back(app.get_subcommands({}).back(), std::move(command));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  for (const auto& [parsed, command] : commands) {
    if (parsed->parsed()) return command();
  }
  return 2;
}

}  // namespace
}  // namespace statcollect::bench

int main(int argc, char** argv) {
  // Batches of a few hundred KiB come and go: keep their pages.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  std::signal(SIGPIPE, SIG_IGN);
  try {
    return statcollect::bench::Run(argc, argv);
  } catch (const std::exception& failure) {
    std::cerr << "statcollect-bench: " << failure.what() << '\n';
    return 1;
  }
}
