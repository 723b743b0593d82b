#include "bench/ingest/daemon.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

extern char** environ;

namespace statcollect::bench {
namespace {

namespace fs = std::filesystem;

// Reads the child's first line; empty if it ended without one.
std::string ReadLine(int descriptor) {
  std::string line;
  char byte = 0;
  for (;;) {
    const ssize_t n = read(descriptor, &byte, 1);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0 || byte == '\n') return line;
    line += byte;
  }
}

std::uint64_t KibibytesOf(const std::string& status, const std::string& field) {
  const std::size_t at = status.find("\n" + field + ":");
  if (at == std::string::npos) return 0;
  return std::stoull(status.substr(at + field.size() + 2)) << 10;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

double ToSeconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

}  // namespace

Result<ProcessUse> ReadUse(pid_t pid) {
  const std::string folder = "/proc/" + std::to_string(pid);
  const std::string stat = ReadFile(folder + "/stat"), status = ReadFile(folder + "/status");
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) {
    return Status(Code::kNotFound,
                  "read " + folder + ": found no such process; expected one on this machine");
  }
  std::istringstream fields(stat.substr(name_end + 2));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;
  std::uint64_t user = 0, system = 0;
  fields >> user >> system;
  return ProcessUse{
      .cpu_seconds = static_cast<double>(user + system) / static_cast<double>(sysconf(_SC_CLK_TCK)),
      .rss_bytes = KibibytesOf(status, "VmRSS"),
      .rss_peak_bytes = KibibytesOf(status, "VmHWM")};
}

StoredBytes MeasureStored(const std::string& directory) {
  StoredBytes stored;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code gone;  // files come and go
    const auto bytes = entry->is_regular_file(gone) ? entry->file_size(gone) : 0;
    if (gone) continue;
    const std::string extension = entry->path().extension();
    std::uint64_t& kind = extension == ".sst"   ? stored.tables
                          : extension == ".log" ? stored.log
                                                : stored.other;
    kind += bytes;
  }
  return stored;
}

Result<SpawnedServer> SpawnedServer::Start(const std::string& program,
                                           const std::vector<std::string>& arguments) {
  const auto failed = [&](const std::string& why) {
    return Status(Code::kUnavailable, "start " + program + ": " + why);
  };
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return failed(std::strerror(errno));
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, program.c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  const std::string ready = error == 0 ? ReadLine(ends[0]) : "";
  close(ends[0]);
  if (error != 0) return failed(std::strerror(error));
  const std::size_t at = ready.find("grpc ");
  SpawnedServer server(
      pid, at == std::string::npos ? "" : ready.substr(at + 5, ready.find(',', at) - at - 5));
  if (at == std::string::npos) {
    return failed("found no line saying that it is ready, but '" + ready +
                  "'; expected 'grpc HOST:PORT' in it");
  }
  return server;
}

SpawnedServer::SpawnedServer(SpawnedServer&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), address_(std::move(other.address_)) {}

SpawnedServer::~SpawnedServer() {
  if (pid_ > 0) (void)Stop(nullptr);
}

Status SpawnedServer::Stop(ProcessUse* use) {
  const pid_t pid = std::exchange(pid_, -1);
  if (pid <= 0)
    return Status(Code::kFailedPrecondition, "stop the server: it has been stopped before");
  kill(pid, SIGTERM);
  int status = 0;
  rusage used{};
  while (wait4(pid, &status, 0, &used) < 0 && errno == EINTR) {
  }
  if (use != nullptr) {
    use->cpu_seconds = ToSeconds(used.ru_utime) + ToSeconds(used.ru_stime);
    use->rss_bytes = 0;
    use->rss_peak_bytes = static_cast<std::uint64_t>(used.ru_maxrss) << 10;
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return Status::Ok();
  return Status(Code::kInternal,
                "stop process " + std::to_string(pid) + ": it ended with " +
                    (WIFEXITED(status) ? "code " + std::to_string(WEXITSTATUS(status))
                                       : "signal " + std::to_string(WTERMSIG(status))) +
                    "; expected code 0");
}

std::vector<std::string> DaemonArguments(const std::string& data_dir,
                                         const std::string& durability) {
  return {"--data-dir", data_dir,       "--listen", "127.0.0.1:0", "--http",
          "off",        "--durability", durability, "--log-level", "warn"};
}

}  // namespace statcollect::bench
