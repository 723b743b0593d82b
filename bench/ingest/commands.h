// The subcommands of statcollect-bench. Each adds its flags; what it returns is run after parsing
// and gives the exit code.
#ifndef STATCOLLECT_BENCH_INGEST_COMMANDS_H_
#define STATCOLLECT_BENCH_INGEST_COMMANDS_H_

#include <functional>

namespace CLI {
class App;
}

namespace statcollect::bench {

using Command = std::function<int()>;

Command AddIngest(CLI::App& app);
Command AddLimits(CLI::App& app);
Command AddQueries(CLI::App& app);
Command AddCrowd(CLI::App& app);
Command AddMemory(CLI::App& app);
Command AddDump(CLI::App& app);
Command AddAcknowledge(CLI::App& app);

}  // namespace statcollect::bench

#endif  // STATCOLLECT_BENCH_INGEST_COMMANDS_H_
