#include "server/access/audit_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <deque>
#include <fstream>
#include <iterator>
#include <optional>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "common/choice.h"
#include "common/names.h"

namespace statcollect::access {
namespace {

constexpr std::size_t kFieldBytesMax = 500;
constexpr std::chrono::minutes kTellInterval{1};

// "2026-01-31T12:34:56.789Z".
std::string TimeText(std::int64_t unix_nanos) {
  const std::time_t seconds = unix_nanos / 1'000'000'000;
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ",
                parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min,
                parts.tm_sec, static_cast<int>(unix_nanos / 1'000'000 % 1000));
  return text.data();
}

std::string LineOf(const AuditEntry& entry, std::int64_t unix_nanos) {
  nlohmann::ordered_json line = {{"time", TimeText(unix_nanos)},
                                 {"principal", Printable(entry.principal, kFieldBytesMax)},
                                 {"address", Printable(entry.address, kFieldBytesMax)},
                                 {"method", Printable(entry.method, kFieldBytesMax)},
                                 {"object", Printable(entry.object, kFieldBytesMax)},
                                 {"outcome", Printable(entry.outcome, kFieldBytesMax)}};
  if (!entry.project.empty()) line["project"] = Printable(entry.project, kFieldBytesMax);
  if (entry.left_out > 0) line["left_out"] = entry.left_out;
  return line.dump() + "\n";
}

// Absent: not a whole line of the log.
std::optional<AuditRecord> ParseLine(const std::string& text) {
  const auto line = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!line.is_object()) return std::nullopt;
  const auto field = [&](const char* name) {
    const auto found = line.find(name);
    // As Write has it, even if somebody else wrote the line.
    return found != line.end() && found->is_string()
               ? Printable(found->get<std::string>(), kFieldBytesMax)
               : std::string();
  };
  AuditRecord record{.time = field("time"),
                     .entry = {.principal = field("principal"),
                               .address = field("address"),
                               .method = field("method"),
                               .object = field("object"),
                               .project = field("project"),
                               .outcome = field("outcome")}};
  const auto left_out = line.find("left_out");
  if (left_out != line.end() && left_out->is_number_unsigned())
    record.entry.left_out = left_out->get<std::uint64_t>();
  return record;
}

// `since`: as TimeText, whose order is that of time.
bool Matches(const AuditRecord& record, const AuditQuery& query, const std::string& since) {
  const AuditEntry& entry = record.entry;
  return record.time >= since && entry.principal.find(query.principal) != std::string::npos &&
         entry.method.find(query.method) != std::string::npos &&
         entry.outcome.starts_with(query.outcome) &&
         (query.only_project.empty() || entry.project == query.only_project);
}

std::string Rotated(const std::string& path, int number) {
  return path + "." + std::to_string(number);
}

}  // namespace

Status CheckOutcome(const std::string& beginning) {
  const std::vector<std::string> known = {"ok", "error", "unauthenticated", "permission_denied",
                                          "invalid_argument"};
  const auto fits = [&](const std::string& one) {
    return one.starts_with(beginning) || beginning.starts_with(one + " ") ||
           beginning.starts_with(one + ":");
  };
  if (std::any_of(known.begin(), known.end(), fits)) return Status::Ok();
  return {Code::kInvalidArgument, "audit: outcome: " + NotOneOf(beginning, known)};
}

AuditLog::AuditLog(std::string path, const Clock& clock,
                   std::function<void(const std::string&)> log, std::size_t file_bytes_max)
    : path_(std::move(path)),
      clock_(clock),
      log_(std::move(log)),
      file_bytes_max_(file_bytes_max),
      told_(clock.Now() - kTellInterval) {}

AuditLog::~AuditLog() {
  if (file_ >= 0) close(file_);
}

bool AuditLog::OpenFile() {
  if (file_ >= 0) return true;
  file_ = open(path_.c_str(), O_RDWR | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  struct stat found {};
  if (file_ < 0 || fstat(file_, &found) != 0) return false;
  bytes_ = static_cast<std::uint64_t>(found.st_size);
  char last = '\n';
  // After a power cut the last line may be half: it stays, on a line of its own.
  if (bytes_ > 0 && pread(file_, &last, 1, found.st_size - 1) == 1 && last != '\n')
    (void)Append("\n");
  return true;
}

void AuditLog::Rotate() {
  close(std::exchange(file_, -1));
  for (int number = kFilesKept - 1; number > 0; --number)
    (void)std::rename(Rotated(path_, number).c_str(), Rotated(path_, number + 1).c_str());
  (void)std::rename(path_.c_str(), Rotated(path_, 1).c_str());
}

// One write, so that a line is never in two pieces.
bool AuditLog::Append(const std::string& line) {
  const ssize_t put = write(file_, line.data(), line.size());
  if (put > 0) bytes_ += static_cast<std::uint64_t>(put);
  return put == static_cast<ssize_t>(line.size());
}

void AuditLog::Write(const AuditEntry& entry) {
  const std::string line = LineOf(entry, clock_.UnixNanos());
  MutexLock lock(mutex_);
  if (file_ >= 0 && bytes_ + line.size() > file_bytes_max_) Rotate();
  if (OpenFile() && Append(line)) return;
  const int error = errno;
  ++lost_;
  if (file_ >= 0) close(std::exchange(file_, -1));  // the next one tries again
  const auto now = clock_.Now();
  if (now - told_ < kTellInterval) return;
  told_ = now;
  log_("audit log " + Printable(path_) + ": " + std::generic_category().message(error) + "; " +
       std::to_string(lost_) + " lines lost so far");
}

AuditFound AuditLog::Find(const AuditQuery& query) const {
  std::vector<std::ifstream>
      files;  // newest first; open ones stay what they are when others rotate
  {
    MutexLock lock(mutex_);
    for (int number = 0; number <= kFilesKept; ++number)
      files.emplace_back(number == 0 ? path_ : Rotated(path_, number));
  }
  const std::string since = query.since_unix_nanos > 0 ? TimeText(query.since_unix_nanos) : "";
  AuditFound found;
  for (std::ifstream& file : files) {
    if (found.more) break;
    std::deque<AuditRecord> in_file;
    for (std::string line; std::getline(file, line);) {
      auto record = ParseLine(line);
      if (!record || !Matches(*record, query, since)) continue;
      in_file.push_back(*std::move(record));
      if (found.records.size() + in_file.size() <= query.limit) continue;
      in_file.pop_front();
      found.more = true;
    }
    found.records.insert(found.records.begin(), std::make_move_iterator(in_file.begin()),
                         std::make_move_iterator(in_file.end()));
  }
  return found;
}

std::uint64_t AuditLog::lost() const {
  MutexLock lock(mutex_);
  return lost_;
}

}  // namespace statcollect::access
