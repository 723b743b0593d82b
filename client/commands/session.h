// What every command gets: the global options, the collector, and where and how to print.
#ifndef STATCOLLECT_CLIENT_COMMANDS_SESSION_H_
#define STATCOLLECT_CLIENT_COMMANDS_SESSION_H_

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>

#include <google/protobuf/message.h>

#include "client/render/page.h"
#include "client/render/table.h"
#include "client/render/terminal.h"
#include "client/rpc/collector.h"
#include "common/status.h"

namespace statcollect::client {

inline constexpr int kExitSame = 0;  // success; diff: same within tolerance
inline constexpr int kExitDiverged = 1;
inline constexpr int kExitNoAnswer = 2;  // unknown run, unreachable, incomparable, wrong usage
inline constexpr int kExitInterrupted = 130;

// kOrt: only of memory and density.
enum class Format { kTable, kJson, kCsv, kMarkdown, kOrt };

struct GlobalOptions {
  Format format = Format::kTable;
  bool quiet = false;  // no progress, no remarks; diff: the verdict only
};

// Thread: main only.
class Session {
 public:
  Session(const GlobalOptions& options, const Terminal& terminal, Collector& collector)
      : options_(options), terminal_(terminal), collector_(collector) {}

  const GlobalOptions& options() const { return options_; }
  const Terminal& terminal() const { return terminal_; }
  Collector& collector() { return collector_; }

  // Prints why there is no answer on standard error; returns the exit code. `attempted`: "diff base ort".
  // kCancelled: the user's Ctrl-C, kExitInterrupted.
  int Fail(const std::string& attempted, const Status& status) const;

  // --- answers, on standard output
  // In the format asked for. `csv` gives the Table, `page` the Page; only what is printed is made.
  template <typename MakeTable, typename MakePage>
  void Print(const google::protobuf::Message& message, const MakeTable& csv, const MakePage& page) const {
    switch (options_.format) {
      case Format::kJson:
        return PrintJson(message);
      case Format::kCsv:
        return PrintCsv(csv());
      default:
        return PrintPage(page());
    }
  }
  void PrintJson(const google::protobuf::Message& message) const;
  void PrintCsv(const Table& table) const;
  void PrintLine(const std::string& line) const;
  void PrintPage(const Page& page) const;  // as text, or as Markdown
  // One sentence that is no part of the answer; nothing with --quiet.
  void Remark(const std::string& sentence) const;

 private:
  const GlobalOptions options_;
  const Terminal terminal_;
  Collector& collector_;
};

// Keeps Ctrl-C from ending the process, until WatchInterrupts. Only before the process has other threads,
// gRPC's included.
void BlockInterrupts();
// The first Ctrl-C cancels the question under way; a second one, or one when nothing is asked, ends the
// process with kExitInterrupted. Both say "statctl: interrupted" on standard error.
void WatchInterrupts(const std::shared_ptr<Collector>& collector);

std::int64_t NowUnixNanos();
// Prints a message on standard error; returns kExitNoAnswer.
int UsageError(const std::string& message);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_COMMANDS_SESSION_H_
