// The context of every command: global options, the collector, and where and how to print.
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
#include "tls/files.h"

namespace statcollect::client {

inline constexpr int kExitSame = 0;  // success; diff: same within tolerance
inline constexpr int kExitDiverged = 1;
inline constexpr int kExitNoAnswer = 2;  // unknown run, unreachable, incomparable, wrong usage
inline constexpr int kExitInterrupted = 130;

// kOrt: memory and density only.
enum class Format { kTable, kJson, kCsv, kMarkdown, kOrt };

struct GlobalOptions {
  std::string command;  // "diff", "golden save"
  Format format = Format::kTable;
  bool quiet = false;    // no progress, no remarks; diff: the verdict only
  std::string data_dir;  // of statctl's own collector, which need not exist
  tls::Files tls_files;  // as they were named; empty: none
  // Of an answer; 0: no limit. import: how long to wait for a lost collector; 0: 30 s.
  double timeout_seconds = 0;
};

// Thread: main only.
class Session {
 public:
  Session(const GlobalOptions& options, const Terminal& terminal, Collector& collector)
      : options_(options), terminal_(terminal), collector_(collector) {}

  const GlobalOptions& options() const { return options_; }
  const Terminal& terminal() const { return terminal_; }
  Collector& collector() { return collector_; }

  // Prints on standard error why there is no answer, and returns the exit code. `attempted`: "diff
  // base ort"; left out if the message says it itself, as "top of run 'base': ..." does. kCancelled
  // (Ctrl-C) returns kExitInterrupted.
  int Fail(const std::string& attempted, const Status& status) const;

  // --- answers, on standard output
  // Prints in the requested format. `csv` makes the Table, `page` the Page; only the one that is
  // printed is made.
  template <typename MakeTable, typename MakePage>
  void Print(const google::protobuf::Message& message, const MakeTable& csv,
             const MakePage& page) const {
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
  // Prints a sentence that is not part of the answer, on standard error; nothing with --quiet.
  void Remark(const std::string& sentence) const;

 private:
  const GlobalOptions options_;
  const Terminal terminal_;
  Collector& collector_;
};

// Keeps Ctrl-C from ending the process until WatchInterrupts. Call it before the process has other
// threads, including gRPC's.
void BlockInterrupts();
// The first Ctrl-C cancels the running query. A second one, or one while no query runs, ends the
// process with kExitInterrupted. Both print "statctl: interrupted" on standard error.
void WatchInterrupts(const std::shared_ptr<Collector>& collector);

std::int64_t NowUnixNanos();
// Prints a message on standard error; returns kExitNoAnswer.
int UsageError(const std::string& message);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_COMMANDS_SESSION_H_
