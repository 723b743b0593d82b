#include "server/store/clickhouse/engine.h"

#include <algorithm>
#include <optional>
#include <random>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "common/names.h"
#include "common/parse.h"
#include "common/text.h"

namespace statcollect {
namespace {

constexpr int kOldestMajor = 18, kOldestMinor = 16;
constexpr std::chrono::milliseconds kPauseFirst{20}, kPauseMax{1'000};

// Writers that wait for each other do not wait in step, and none waits longer than the others.
std::chrono::milliseconds PauseOfTheBusy() {
  return kPauseFirst / 2 + std::chrono::milliseconds(std::random_device()() % 40);
}

// Codes of the engine (its src/Common/ErrorCodes.cpp), by what a client can do about them.
enum EngineCode : int {
  kUnknownTable = 60,
  kUnknownDatabase = 81,
  kOtherColumns = 122,  // than the table's other replicas
  kReadOnlyUser = 164,
  kUnknownUser = 192,
  kWrongPassword = 193,
  kNotEnoughSpace = 243,
  kReplicaExists = 253,
  kTooFewReplicas = 285,
  kPreviousQuorum = 286,  // one quorum insert at a time in each table
  kUnknownStatus = 319,
  kPartitionTooLarge = 359,
  kAccessDenied = 497,
  kAuthenticationFailed = 516,
};
// Time-outs, the network, memory and load (241: memory, 252: too many parts), a stop (236), and of
// replicated tables: read-only, no ZooKeeper or trouble with it (225, 244, 999), too few replicas,
// the previous quorum not reached, a replica that lags behind (289), and 319, the unknown outcome
// of an insert.
constexpr int kPassing[] = {159, 202, 209, 210, 225, 236, 241, 242, 244,
                            252, 254, 285, 286, 289, 319, 394, 999};
// A replica without its ZooKeeper, or with one that does not answer; it can be read at best.
constexpr int kWithoutZooKeeper[] = {225, 242, 999};
// At one of several hosts: it was down when the tables were made.
constexpr int kMissingHere[] = {kUnknownTable, kUnknownDatabase};

bool IsOneOf(int code, std::span<const int> codes) {
  return std::find(codes.begin(), codes.end(), code) != codes.end();
}

// Code 164 is said of a user who may not write, and of a replica that has not found its ZooKeeper
// yet.
bool IsPassing(int code, std::string_view words) {
  return IsOneOf(code, kPassing) ||
         (code == kReadOnlyUser && words.find("not active") != std::string_view::npos);
}

// An engine that wants to keep some space free says code 243; one that has none says which file it
// could not write (75, 76).
bool IsFullDisk(std::string_view words) {
  return words.find("No space left on device") != std::string_view::npos ||
         words.find("Disk quota exceeded") != std::string_view::npos;
}

std::vector<std::string> HeadersOf(const ClickHouseDsn& dsn) {
  std::vector<std::string> headers = {"Content-Type: application/octet-stream"};
  if (!dsn.user.empty()) headers.push_back("X-ClickHouse-User: " + dsn.user);
  if (!dsn.password.empty()) headers.push_back("X-ClickHouse-Key: " + dsn.password);
  return headers;
}

// "Code: 319, e.displayText() = DB::Exception: ..." and "Code: 319. DB::Exception: ...".
std::optional<int> CodeOf(std::string_view body) {
  const std::size_t at = body.find("Code: ");
  if (at == std::string_view::npos) return std::nullopt;
  const auto code = ParseLeadingNumber<int>(body.substr(at + 6));
  return code ? std::optional(code->number) : std::nullopt;
}

// The engine's own words, without its stack.
std::string Words(std::string_view body) {
  std::string_view text = body.substr(0, body.find(", e.what()"));
  text = text.substr(0, text.find("Stack trace"));
  for (const std::string_view before :
       {std::string_view("DB::Exception: "), std::string_view("e.displayText() = ")}) {
    const std::size_t at = text.find(before);
    if (at == std::string_view::npos) continue;
    text.remove_prefix(at + before.size());
    break;
  }
  return Printable(Trimmed(text), 400);
}

Code CodeFor(int engine_code) {
  switch (engine_code) {
    case kNotEnoughSpace:
      return Code::kResourceExhausted;
    case kReadOnlyUser:
    case kUnknownUser:
    case kWrongPassword:
    case kAccessDenied:
    case kAuthenticationFailed:
      return Code::kPermissionDenied;
    case kOtherColumns:
      return Code::kAborted;
    default:
      return Code::kFailedPrecondition;
  }
}

// What is wrong with the set-up or the load, by what the engine says.
std::string NextStepFor(int engine_code) {
  switch (engine_code) {
    case kNotEnoughSpace:
      return "; expected room for the records; free space on the engine's disk, or remove runs "
             "(statctl rm); the collector then continues by itself";
    case kReadOnlyUser:
    case kAccessDenied:
      return "; expected a user who may create, write and read tables there; name one in --store "
             "clickhouse://USER:PASSWORD@HOST:PORT/DATABASE";
    case kUnknownUser:
    case kWrongPassword:
    case kAuthenticationFailed:
      return "; expected a user whom ClickHouse knows, and the password; check the user and the "
             "password in --store clickhouse://USER:PASSWORD@HOST:PORT/DATABASE";
    case kUnknownDatabase:
      return "; expected the store's database; was it dropped? a start of the collector creates it "
             "again, empty";
    case kTooFewReplicas:
    case kUnknownStatus:
      return "; expected as many replicas as the quorum asks for; start those that are missing, or "
             "name fewer with quorum=; recording goes on by itself once they run";
    case kUnknownTable:
      return "; expected the store's tables; start a collector again while all hosts run: it "
             "creates what is missing";
    case kPartitionTooLarge:
      return "; expected a server that may drop a run of any size; set max_partition_size_to_drop "
             "to 0 in its configuration (docs/clickhouse.md) and start it again; the data is then "
             "deleted";
    case kReplicaExists:
      return "; expected a macro {replica} that no other host has or had; set it in the host's "
             "configuration, also where the host has lost its disk and ZooKeeper still knows it";
    default:
      return "; expected no error; the engine's log has more";
  }
}

// Of a replica that could not act as one, and of everything that passes.
std::string NextStepFor(int engine_code, std::string_view words) {
  if (words.find("No macro") != std::string_view::npos)
    return "; expected the macros {shard} and {replica}, of which the replicas' names are made; "
           "define them in the configuration of each host (docs/clickhouse.md)";
  if (!IsPassing(engine_code, words) || engine_code == kTooFewReplicas ||
      engine_code == kUnknownStatus)
    return NextStepFor(engine_code);
  if (IsOneOf(engine_code, kWithoutZooKeeper) || engine_code == kReadOnlyUser)
    return "; expected a replica that has its ZooKeeper; check that ZooKeeper runs, and that this "
           "host's configuration names it; the collector then continues by itself";
  return "; expected an engine that is up to its load; it is asked again; if this lasts, its log "
         "has more";
}

}  // namespace

Engine::Engine(ClickHouseDsn dsn, EngineOptions options)
    : dsn_(std::move(dsn)),
      options_(std::move(options)),
      poster_({.headers = HeadersOf(dsn_),
               .connect_timeout = options_.connect_timeout,
               .timeout = options_.timeout,
               .ca_file = dsn_.ca_file}) {}

std::string Engine::Parameters(Purpose purpose) const {
  // The answer is sent once it is complete, so that a failure on the way is not taken for its end.
  std::string parameters = "wait_end_of_query=1&buffer_size=16777216";
  if (dsn_.quorum > 0 && purpose == Purpose::kRead)
    parameters += "&select_sequential_consistency=1";
  if (dsn_.quorum > 1 && purpose == Purpose::kWrite)
    parameters += "&insert_quorum=" + std::to_string(dsn_.quorum) + "&insert_quorum_timeout=20000";
  if (is_modern() && dsn_.quorum > 1 && purpose == Purpose::kWrite)
    parameters += "&insert_quorum_parallel=0";
  if (is_modern() && purpose == Purpose::kWrite) parameters += "&async_insert=0";
  return parameters;
}

Engine::Answer Engine::Judge(const std::string& attempted, const std::string& url,
                             PostReply reply) const {
  Answer answer;
  const std::string at = attempted + ": " + dsn_.ShardName() + "ClickHouse at " + url + ": ";
  if (reply.fate == PostReply::Fate::kUntrusted) {
    answer.status = {
        Code::kFailedPrecondition,
        at + "found " + Printable(reply.why) +
            "; expected TLS with a certificate of this host that an authority in " +
            (dsn_.ca_file.empty() ? std::string("the system's certificates")
                                  : "'" + Printable(dsn_.ca_file) + "'") +
            " signed; name the authority's file with ?ca=FILE, and the host as in the certificate"};
    answer.again = true;  // a certificate may be replaced
    return answer;
  }
  if (reply.fate != PostReply::Fate::kAnswered) {
    answer.status = {Code::kUnavailable, at + "found no answer (" + Printable(reply.why) +
                                             "); expected one; is it running, and is this its " +
                                             (dsn_.tls ? "HTTPS" : "HTTP") + " port?"};
    answer.again = true;
    return answer;
  }
  answer.answered = true;
  if (reply.http_status == 200) {
    answer.rows = std::move(reply.body);
    return answer;
  }
  const auto code = CodeOf(reply.body);
  if (!code) {
    answer.status = {Code::kFailedPrecondition,
                     at + "found HTTP status " + std::to_string(reply.http_status) + " (" +
                         Printable(reply.body, 100) +
                         "); expected ClickHouse's HTTP interface, by default on port 8123; name "
                         "its host and port in --store"};
    answer.again = reply.http_status >= 502 && reply.http_status <= 504;  // a proxy's
    if (answer.again) answer.status = {Code::kUnavailable, answer.status.message()};
    return answer;
  }
  const std::string words = Words(reply.body);
  const int meant = IsFullDisk(words) ? kNotEnoughSpace : *code;
  answer.again = IsPassing(meant, words);
  answer.status = {
      answer.again ? Code::kUnavailable : CodeFor(meant),
      at + "found code " + std::to_string(*code) + ", " + words + NextStepFor(meant, words)};
  answer.busy = *code == kPreviousQuorum;
  answer.again = answer.again || (dsn_.urls.size() > 1 && IsOneOf(*code, kMissingHere));
  return answer;
}

Engine::Answer Engine::TryOnce(std::size_t host, const std::string& attempted,
                               const std::string& parameters, const std::string& body) {
  const std::string& url = dsn_.urls[host];
  return Judge(attempted, url, poster_.Post(url + "?" + parameters, body));
}

Result<std::string> Engine::Try(const std::string& attempted, Purpose purpose,
                                const std::string& parameters, const std::string& body) {
  const auto patience =
      purpose == Purpose::kRead ? options_.read_patience : options_.write_patience;
  const auto end = [&, start = std::chrono::steady_clock::now()] {
    return std::min(start + patience, last_try_.load());
  };
  auto pause = kPauseFirst;
  std::size_t host = host_;
  for (bool reported = false;; pause = std::min(2 * pause, kPauseMax)) {
    Answer answer;
    for (std::size_t i = 0; i < dsn_.urls.size(); ++i, host = (host + 1) % dsn_.urls.size()) {
      Answer found = TryOnce(host, attempted, parameters, body);
      if (found.again) {
        // Of all that went wrong, what a host says is closer to the reason than that another one is
        // not there.
        if (i == 0 || found.answered) answer = std::move(found);
        continue;
      }
      host_ = host;
      if (purpose == Purpose::kWrite) waited_in_vain_ = false;
      if (!found.status.ok()) return found.status;
      return std::move(found.rows);
    }
    if (answer.busy) pause = PauseOfTheBusy();
    const bool hopeless = purpose == Purpose::kWrite && !answer.busy && waited_in_vain_;
    if (hopeless || std::chrono::steady_clock::now() + pause >= end()) {
      if (purpose == Purpose::kWrite) {
        waited_in_vain_ = true;
        if (stopping())
          options_.log(answer.status.message() + "; given up, for the collector ends");
      }
      return answer.status;
    }
    if (!answer.busy && !reported && purpose == Purpose::kWrite)
      options_.log(answer.status.message() + "; trying again");
    reported = reported || !answer.busy;
    std::this_thread::sleep_for(pause);
  }
}

void Engine::BeginStop() {
  const auto end = std::chrono::steady_clock::now() + options_.stop_patience;
  last_try_ = end;
  poster_.EndBy(end);
}

Result<std::string> Engine::Select(const std::string& attempted, const std::string& query) {
  return Try(attempted, Purpose::kRead, Parameters(Purpose::kRead), query + " FORMAT RowBinary");
}

Status Engine::Execute(const std::string& attempted, const std::string& statement) {
  return Try(attempted, Purpose::kWrite, "wait_end_of_query=1", statement).status();
}

Status Engine::ExecuteEverywhere(const std::string& attempted, const std::string& statement) {
  Status failure;
  std::size_t failed = 0;
  for (std::size_t host = 0; host < dsn_.urls.size(); ++host) {
    Answer answer = TryOnce(host, attempted, "wait_end_of_query=1", statement);
    if (answer.status.ok()) continue;
    if (!answer.again) return answer.status;
    failure = std::move(answer.status);
    // It learns of it at the next start of a collector, as of any other that it misses.
    if (++failed < dsn_.urls.size() && missed_.insert(host).second)
      options_.log(failure.message() +
                   "; if it lacks the tables, the next start of a collector creates them there");
  }
  return failed == dsn_.urls.size() ? failure : Status::Ok();
}

Result<std::vector<Engine::HostRows>> Engine::SelectEverywhere(const std::string& attempted,
                                                               const std::string& query) {
  std::vector<HostRows> all;
  Status failure;
  for (std::size_t host = 0; host < dsn_.urls.size(); ++host) {
    Answer answer = TryOnce(host, attempted, "wait_end_of_query=1", query + " FORMAT RowBinary");
    if (!answer.status.ok() && !answer.again) return answer.status;
    if (answer.status.ok())
      all.push_back({dsn_.urls[host], std::move(answer.rows)});
    else
      failure = std::move(answer.status);
  }
  if (all.empty()) return failure;
  return all;
}

Status Engine::Insert(const std::string& attempted, const std::string& into,
                      const std::string& rows, const std::string& token) {
  std::string parameters =
      Parameters(Purpose::kWrite) + "&max_insert_block_size=" + std::to_string(2 * kInsertRowsMax);
  if (is_modern()) parameters += "&insert_deduplication_token=" + HttpPoster::Escaped(token);
  parameters += "&query=" + HttpPoster::Escaped("INSERT INTO " + into + " FORMAT RowBinary");
  return Try(attempted, Purpose::kWrite, parameters, rows).status();
}

Status Engine::Connect() {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto answer,
                               Try("open the store", Purpose::kRead, "wait_end_of_query=1",
                                   "SELECT version() FORMAT TabSeparated"));
  version_ = std::string(Trimmed(answer));
  const auto major = ParseLeadingNumber<int>(version_);
  const auto minor = major && major->rest.starts_with('.')
                         ? ParseLeadingNumber<int>(major->rest.substr(1))
                         : std::nullopt;
  if (!minor) {
    return {Code::kFailedPrecondition,
            "open the store: " + dsn_.Describe() + ": found '" + Printable(version_) +
                "' as its version; expected ClickHouse's HTTP interface, by default on port 8123; "
                "name its host and port in --store"};
  }
  if (std::pair(major->number, minor->number) < std::pair(kOldestMajor, kOldestMinor)) {
    return {Code::kFailedPrecondition, "open the store: " + dsn_.Describe() +
                                           ": found ClickHouse " + Printable(version_) +
                                           "; expected 18.16 or newer; upgrade it"};
  }
  major_ = major->number;
  return Status::Ok();
}

}  // namespace statcollect
