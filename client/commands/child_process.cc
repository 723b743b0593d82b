#include "client/commands/child_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "common/names.h"

extern char** environ;  // NOLINT: POSIX declares it nowhere

namespace statcollect::client {
namespace {

constexpr std::size_t kTailBytes = 64u << 10;

std::vector<std::string> Environment(const Variables& variables) {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const bool replaced =
        std::any_of(variables.begin(), variables.end(),
                    [&](const auto& variable) { return text.starts_with(variable.first + "="); });
    if (!replaced) entries.emplace_back(text);
  }
  for (const auto& [name, value] : variables) entries.push_back(name + "=" + value);
  return entries;
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Signals as a program expects them: statctl blocks SIGINT in all of its threads, and ignores
// SIGPIPE.
class ProgramAttributes {
 public:
  ProgramAttributes() {
    posix_spawnattr_init(&attributes_);
    sigset_t none, all;
    sigemptyset(&none);
    sigemptyset(&all);
    for (const int signal : {SIGINT, SIGPIPE, SIGTERM, SIGHUP, SIGQUIT}) sigaddset(&all, signal);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setsigdefault(&attributes_, &all);
    posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  ~ProgramAttributes() { posix_spawnattr_destroy(&attributes_); }
  ProgramAttributes(const ProgramAttributes&) = delete;
  ProgramAttributes& operator=(const ProgramAttributes&) = delete;
  const posix_spawnattr_t* get() const { return &attributes_; }

 private:
  posix_spawnattr_t attributes_;
};

// While it exists, SIGTERM and SIGHUP go to the program, which may want to end well; statctl ends
// behind it. A signal that comes before the program is known waits for it. Handlers run on any
// thread.
class PassedOn {
 public:
  PassedOn() {
    struct sigaction pass {};
    pass.sa_handler = [](int signal) {
      const int error = errno;
      waiting_ = signal;
      Pass();
      errno = error;
    };
    pass.sa_flags = SA_RESTART;
    sigaction(SIGTERM, &pass, &term_);
    sigaction(SIGHUP, &pass, &hang_up_);
  }
  ~PassedOn() {
    To(0);
    sigaction(SIGTERM, &term_, nullptr);
    sigaction(SIGHUP, &hang_up_, nullptr);
    waiting_ = 0;
  }
  PassedOn(const PassedOn&) = delete;
  PassedOn& operator=(const PassedOn&) = delete;
  // 0: there is none any more.
  static void To(pid_t child) {
    child_ = child;
    Pass();
  }

 private:
  // Whoever writes second, the program's pid or the signal, sees what the other has written.
  static void Pass() {
    const pid_t child = child_;
    if (child <= 0) return;
    if (const int signal = waiting_.exchange(0); signal != 0) kill(child, signal);
  }

  static inline std::atomic<pid_t> child_ = 0;
  static inline std::atomic<int> waiting_ = 0;
  struct sigaction term_ {
  }, hang_up_{};
};

// Reads to the end, and keeps the last bytes.
std::string ReadTail(int fd, std::size_t bytes_max) {
  std::string text;
  std::array<char, 4096> part;
  while (true) {
    const ssize_t got = read(fd, part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(part.data(), static_cast<std::size_t>(got));
    if (text.size() / 2 > bytes_max) text.erase(0, text.size() - bytes_max);
  }
  if (text.size() > bytes_max) text.erase(0, text.size() - bytes_max);
  return text;
}

Status CannotStart(const std::string& program, int error) {
  return {error == ENOENT ? Code::kNotFound : Code::kUnknown,
          "start '" + Printable(program) + "': " + std::strerror(error) +
              "; expected the command that trains the run, after --"};
}

}  // namespace

Result<ChildEnd> RunChild(const std::vector<std::string>& command, const Variables& variables,
                          ChildOutput output, const std::string& folder) {
  const bool keep_output = output == ChildOutput::kKept || output == ChildOutput::kRead;
  std::array<int, 2> pipe = {-1, -1};
  if (keep_output && pipe2(pipe.data(), O_CLOEXEC) != 0) return CannotStart(command.front(), errno);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (!folder.empty()) posix_spawn_file_actions_addchdir_np(&actions, folder.c_str());
  if (output != ChildOutput::kAsIs)
    posix_spawn_file_actions_adddup2(&actions, keep_output ? pipe[1] : STDERR_FILENO,
                                     STDOUT_FILENO);
  if (output == ChildOutput::kKept)
    posix_spawn_file_actions_adddup2(&actions, pipe[1], STDERR_FILENO);
  if (output == ChildOutput::kRead)
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  const ProgramAttributes attributes;
  std::vector<std::string> words = command, entries = Environment(variables);
  const std::vector<char*> argv = Pointers(words), envp = Pointers(entries);
  const PassedOn signals;
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, command.front().c_str(), &actions, attributes.get(),
                                 argv.data(), envp.data());
  if (error == 0) PassedOn::To(pid);
  posix_spawn_file_actions_destroy(&actions);
  if (keep_output) close(pipe[1]);
  ChildEnd end;
  if (error == 0 && keep_output)
    end.tail = ReadTail(pipe[0], output == ChildOutput::kKept ? kTailBytes : SIZE_MAX);
  if (keep_output) close(pipe[0]);
  if (error != 0) return CannotStart(command.front(), error);
  siginfo_t ended{};
  while (waitid(P_PID, static_cast<id_t>(pid), &ended, WEXITED | WNOWAIT) < 0 && errno == EINTR) {
  }
  PassedOn::To(0);  // while the pid is still the program's
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  end.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return end;
}

std::string AbsolutePath(const std::string& path) {
  std::error_code error;
  return path.empty() ? path : std::filesystem::absolute(path, error).string();
}

std::optional<std::string> OutputOf(const std::vector<std::string>& command) {
  auto end = RunChild(command, {}, ChildOutput::kRead);
  if (!end.ok() || end->code != 0) return std::nullopt;
  return std::move(end->tail);
}

}  // namespace statcollect::client
