#include "client/exports/python_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "common/names.h"
#include "common/text.h"

extern char** environ;  // NOLINT: POSIX declares it nowhere

namespace statcollect::client {
namespace {

namespace fs = std::filesystem;

Status CannotStart(const std::string& python, int error) {
  return {error == ENOENT ? Code::kNotFound : Code::kUnknown,
          "start Python as '" + Printable(python) + "': " + std::strerror(error) +
              "; STATCTL_PYTHON names the program to use"};
}

struct Pipe {
  int read = -1, write = -1;

  bool Open() { return pipe2(&read, O_CLOEXEC) == 0; }
  static void Close(int& fd) {
    if (fd >= 0) close(std::exchange(fd, -1));
  }
  ~Pipe() {
    Close(read);
    Close(write);
  }
};
static_assert(sizeof(Pipe) == 2 * sizeof(int));

// Reads to the end.
std::string ReadAll(int fd) {
  std::string text;
  std::array<char, 4096> part;
  while (true) {
    const ssize_t got = read(fd, part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(part.data(), static_cast<std::size_t>(got));
  }
}

}  // namespace

std::string FindPython() {
  if (const char* const named = std::getenv("STATCTL_PYTHON"); named != nullptr && *named != '\0')
    return named;
  std::vector<fs::path> candidates;
  if (const char* const active = std::getenv("VIRTUAL_ENV"); active != nullptr && *active != '\0')
    candidates.push_back(fs::path(active) / "bin" / "python");
  std::error_code error;
  if (const fs::path self = fs::read_symlink("/proc/self/exe", error); !error) {
    const fs::path folder = self.parent_path();
    candidates.push_back(folder / "python");  // of a wheel
    candidates.push_back(folder / ".." / ".." / ".." / ".venv" / "bin" /
                         "python");  // build/PRESET/bin
  }
  for (const fs::path& candidate : candidates) {
    if (access(candidate.c_str(), X_OK) == 0) return candidate.lexically_normal().string();
  }
  return "python3";
}

Result<PythonProcess> PythonProcess::Start(const std::string& python, const std::string& program,
                                           const std::vector<std::string>& arguments) {
  (void)std::signal(SIGPIPE, SIG_IGN);  // a write to a program that has ended is an error instead
  Pipe input, errors;
  if (!input.Open() || !errors.Open()) return CannotStart(python, errno);
  // More than the pipe holds is lost: it must not wait for us while we wait for it.
  (void)fcntl(errors.write, F_SETFL, O_NONBLOCK);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input.read, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, errors.write, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, errors.write, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  std::vector<std::string> words = {python, "-B", "-c", program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, python.c_str(), &actions, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return CannotStart(python, error);
  return PythonProcess(pid, FileWriter::Of("the pipe to " + python, std::exchange(input.write, -1)),
                       std::exchange(errors.read, -1));
}

PythonProcess::PythonProcess(PythonProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)),
      input_(std::move(other.input_)),
      errors_(std::exchange(other.errors_, -1)) {}

PythonProcess::~PythonProcess() {
  if (pid_ != 0) {
    (void)kill(pid_, SIGKILL);
    (void)Wait();
  }
}

PythonProcess::End PythonProcess::Wait() {
  End end{.errors = ReadAll(errors_)};
  end.errors = std::string(Trimmed(end.errors));
  Pipe::Close(errors_);
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = 0;
  end.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return end;
}

}  // namespace statcollect::client
