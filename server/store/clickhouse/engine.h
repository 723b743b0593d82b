// Statements of a ClickHouse over HTTP, sent again while their outcome is unknown or the engine
// cannot take them for now, to the next of its hosts where one does not answer.
#ifndef STATCOLLECT_SERVER_STORE_CLICKHOUSE_ENGINE_H_
#define STATCOLLECT_SERVER_STORE_CLICKHOUSE_ENGINE_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "common/status.h"
#include "server/store/clickhouse/dsn.h"
#include "server/store/clickhouse/http_post.h"

namespace statcollect {

struct EngineOptions {
  std::chrono::milliseconds connect_timeout{3'000};
  std::chrono::milliseconds timeout{60'000};         // of one request
  std::chrono::milliseconds read_patience{3'000};    // a read is tried again for this long
  std::chrono::milliseconds write_patience{20'000};  // a write
  std::chrono::milliseconds stop_patience{5'000};    // anything, from BeginStop on
  std::function<void(const std::string& line)> log = [](const std::string&) {};
};

// Threads: any.
class Engine {
 public:
  Engine(ClickHouseDsn dsn, EngineOptions options);

  // The rows of a SELECT, in the format RowBinary, complete or not at all.
  Result<std::string> Select(const std::string& attempted, const std::string& query);
  // A statement without an answer, which may be repeated.
  Status Execute(const std::string& attempted, const std::string& statement);
  // The same at every host, for what a host does not pass on. Ok if one host succeeded and the
  // others are down. Call from one thread.
  Status ExecuteEverywhere(const std::string& attempted, const std::string& statement);
  struct HostRows {
    std::string url, rows;
  };
  // What each answering host has of its own, such as the description of its tables.
  Result<std::vector<HostRows>> SelectEverywhere(const std::string& attempted,
                                                 const std::string& query);
  // Writes rows to a table, `into` being its name and columns. Becomes visible as one block or not
  // at all, as long as the rows are of one partition and at most kInsertRowsMax. After a failure
  // with kUnavailable the outcome is unknown: it may still appear. The rows may appear twice, as
  // equal rows. `token` is the same for equal rows only.
  Status Insert(const std::string& attempted, const std::string& into, const std::string& rows,
                const std::string& token);

  // Once, before anything else: finds out the engine's version. kUnavailable: it does not answer;
  // kFailedPrecondition: it is too old.
  Status Connect();
  // From stop_patience after this call on, nothing is waited for or tried again.
  void BeginStop();
  // Whether the last part that reached its quorum must stay: without it, releases before 22 refuse
  // every consistent read.
  bool needs_last_part() const { return dsn_.quorum > 1 && !is_modern(); }
  bool is_modern() const { return major_ >= 22; }  // has tokens, disks and fsync
  // Whether a statement may drop a partition of any size, whatever the server's configuration says.
  bool drops_any_size() const { return major_ >= 24; }
  const std::string& version() const { return version_; }
  const ClickHouseDsn& dsn() const { return dsn_; }
  void Log(const std::string& line) const { options_.log(line); }

 private:
  static constexpr auto kNever = std::chrono::steady_clock::time_point::max();
  bool stopping() const { return last_try_.load() != kNever; }

  enum class Purpose { kRead, kWrite };
  struct Answer {
    std::string rows;
    Status status;
    bool answered = false;
    bool again = false;  // may succeed later, or elsewhere
    bool busy = false;   // the same, in a moment: another insert is under way
  };

  Result<std::string> Try(const std::string& attempted, Purpose purpose,
                          const std::string& parameters, const std::string& body);
  Answer TryOnce(std::size_t host, const std::string& attempted, const std::string& parameters,
                 const std::string& body);
  Answer Judge(const std::string& attempted, const std::string& url, PostReply reply) const;
  std::string Parameters(Purpose purpose) const;

  const ClickHouseDsn dsn_;
  const EngineOptions options_;
  HttpPoster poster_;
  std::atomic<std::size_t> host_{0};  // that answered last
  // A write was tried for its whole patience, and none has succeeded since. The next ones do not
  // wait: hellos, which hold the registry's mutex, would otherwise wait one after another, and
  // everything else that needs the mutex with them.
  std::atomic<bool> waited_in_vain_{false};
  std::atomic<std::chrono::steady_clock::time_point> last_try_{kNever};
  std::set<std::size_t> missed_;  // hosts that ExecuteEverywhere did not reach
  std::string version_;           // written by Connect
  int major_ = 0;
};

inline constexpr std::size_t kInsertRowsMax = std::size_t{1} << 20;
inline constexpr std::size_t kInsertBytesMax = std::size_t{64} << 20;

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CLICKHOUSE_ENGINE_H_
