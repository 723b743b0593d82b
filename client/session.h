// What every command gets: the global options, the connection, and where to print.
#ifndef STATCOLLECT_CLIENT_SESSION_H_
#define STATCOLLECT_CLIENT_SESSION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/page.h"
#include "client/table.h"
#include "client/terminal.h"
#include "common/status.h"
#include "statcollect/v1/admin.grpc.pb.h"
#include "statcollect/v1/query.grpc.pb.h"

namespace grpc {
class ClientContext;
class Status;
}  // namespace grpc

namespace statcollect::client {

inline constexpr int kExitSame = 0;  // success; diff: same within tolerance
inline constexpr int kExitDiverged = 1;
inline constexpr int kExitNoAnswer = 2;  // unknown run, unreachable, incomparable, wrong usage
inline constexpr int kExitInterrupted = 130;

struct GlobalOptions {
  std::string collector = "127.0.0.1:7433";
  std::string format = "table";  // table, json, csv, markdown
  bool quiet = false;            // no progress, no hints
  double timeout_seconds = 0;    // of a question; 0: none
};

// Thread: main only.
class Session {
 public:
  Session(const GlobalOptions& options, const Terminal& terminal);

  const GlobalOptions& options() const { return options_; }
  const Terminal& terminal() const { return terminal_; }
  bool json() const { return options_.format == "json"; }
  bool csv() const { return options_.format == "csv"; }

  v1::Query::Stub& query() { return *query_; }
  v1::Admin::Stub& admin() { return *admin_; }
  // Sets the deadline that --timeout asks for, and registers the call to be cancelled by Ctrl-C until the
  // next Prepare.
  void Prepare(grpc::ClientContext& context);

  // Message on standard error for a failed call; returns the exit code. `attempted`: "diff base ort".
  int Fail(const std::string& attempted, const grpc::Status& status) const;

  void PrintJson(const google::protobuf::Message& message) const;
  void Print(const Page& page) const;  // table or Markdown
  void PrintCsv(const Table& table) const;
  // A list of records: as CSV, or as a page with this table.
  void PrintTable(const Table& table) const;

 private:
  GlobalOptions options_;
  Terminal terminal_;
  std::unique_ptr<v1::Query::Stub> query_;
  std::unique_ptr<v1::Admin::Stub> admin_;
};

// Installs the handler: the first Ctrl-C cancels the call under way, the second ends the process.
void HandleInterrupts();
bool Interrupted();

std::int64_t NowUnixNanos();

// "0,1,4-7" -> ranks; kInvalidArgument names the part that does not parse.
Result<std::vector<std::uint32_t>> ParseRanks(const std::string& text);
// "output,grad_output" -> kinds.
Result<std::vector<v1::Kind>> ParseKinds(const std::string& text);
// "error: ..." on standard error; returns kExitNoAnswer.
int UsageError(const std::string& message);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_SESSION_H_
