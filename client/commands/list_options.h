// Options of the commands that list, compare or remove runs; the others are in main.cc.
#ifndef STATCOLLECT_CLIENT_COMMANDS_LIST_OPTIONS_H_
#define STATCOLLECT_CLIENT_COMMANDS_LIST_OPTIONS_H_

#include <CLI/CLI.hpp>

#include "client/commands/commands.h"

namespace statcollect::client {

// `options` must outlive the parser.
void AddOptions(CLI::App& app, RunsOptions& options);
void AddOptions(CLI::App& app, RemoveOptions& options);
void AddOptions(CLI::App& app, ScalarsOptions& options);
void AddOptions(CLI::App& app, MemoryOptions& options);

inline constexpr char kRunsExamples[] =
    "  statctl runs\n"
    "  statctl runs --filter 'gpt-*' --sort start      # newest first\n"
    "  statctl runs --state running --format json\n";
inline constexpr char kRemoveExamples[] =
    "  statctl rm old-run\n"
    "  statctl rm old-run 'try-*'          # lists them and asks\n"
    "  statctl rm 'try-*' --yes            # from a script\n";
inline constexpr char kScalarsExamples[] =
    "  statctl scalars base\n"
    "  statctl scalars base --name loss --rank 0 --format csv\n"
    "  statctl scalars base --against ort   # both values, and where they differ first; exit code: 0 same, 1 "
    "not\n";

inline constexpr char kMemoryExamples[] =
    "  statctl memory base\n  statctl memory base --rank 0 --step 12\n"
    "  statctl memory base --modules           # if watch(model, memory=\"modules\") recorded them\n"
    "  statctl memory base --format ort        # the lines of ONNX Runtime's memory observer\n";

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_COMMANDS_LIST_OPTIONS_H_
