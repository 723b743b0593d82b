// A program run by a test: its output, its exit code; on request with a terminal.
#ifndef STATCOLLECT_TESTS_CLIENT_PROCESS_H_
#define STATCOLLECT_TESTS_CLIENT_PROCESS_H_

#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace statcollect::testing {

struct Finished {
  int code = -1;  // 128 + signal if one ended it
  std::string out, err;
};

// Starts at construction. Output is read by Wait.
class Process {
 public:
  enum class Input { kNothing, kTerminal };

  // With a terminal, input, output and errors all are that terminal, 100 columns wide, and
  // everything printed is in `out`.
  Process(const std::vector<std::string>& arguments,
          const std::map<std::string, std::string>& environment = {},
          Input input = Input::kNothing) {
    if (input == Input::kTerminal) {
      winsize size{.ws_row = 40, .ws_col = 100, .ws_xpixel = 0, .ws_ypixel = 0};
      pid_ = forkpty(&out_, nullptr, nullptr, &size);
      if (pid_ == 0) Exec(arguments, environment);
      return;
    }
    int out[2], err[2];
    if (pipe(out) != 0 || pipe(err) != 0) return;
    pid_ = fork();
    if (pid_ == 0) {
      dup2(out[1], STDOUT_FILENO);
      dup2(err[1], STDERR_FILENO);
      close(out[0]);
      close(err[0]);
      if (freopen("/dev/null", "r", stdin) == nullptr) _exit(126);
      Exec(arguments, environment);
    }
    close(out[1]);
    close(err[1]);
    out_ = out[0];
    err_ = err[0];
  }
  ~Process() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    for (const int fd : {out_, err_}) {
      if (fd >= 0) close(fd);
    }
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void Signal(int signal) { kill(pid_, signal); }
  // To the terminal.
  void Type(const std::string& text) { (void)!write(out_, text.data(), text.size()); }
  // Reads until the text has been printed, or everything has.
  void AwaitOutput(const std::string& text) {
    while (finished_.out.find(text) == std::string::npos && ReadSome()) {
    }
  }
  Finished Wait() {
    while (ReadSome()) {
    }
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    finished_.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return finished_;
  }

 private:
  [[noreturn]] static void Exec(const std::vector<std::string>& arguments,
                                const std::map<std::string, std::string>& environment) {
    std::vector<char*> argv;
    for (const std::string& argument : arguments)
      argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    unsetenv("STATCTL_COLLECTOR");
    unsetenv("NO_COLOR");
    setenv("TERM", "xterm", 1);
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    execv(argv[0], argv.data());
    _exit(127);
  }

  // False once both are at their end.
  bool ReadSome() {
    pollfd fds[2] = {{.fd = out_, .events = POLLIN, .revents = 0},
                     {.fd = err_, .events = POLLIN, .revents = 0}};
    if (out_ < 0 && err_ < 0) return false;
    if (poll(fds, 2, -1) < 0) return true;
    Drain(fds[0], out_, finished_.out);
    Drain(fds[1], err_, finished_.err);
    return out_ >= 0 || err_ >= 0;
  }
  static void Drain(const pollfd& ready, int& fd, std::string& text) {
    if (fd < 0 || ready.revents == 0) return;
    char buffer[4096];
    const ssize_t got = read(fd, buffer, sizeof buffer);
    if (got > 0) {
      text.append(buffer, static_cast<std::size_t>(got));
    } else {  // end, or EIO of a terminal whose other side is gone
      close(fd);
      fd = -1;
    }
  }

  pid_t pid_ = -1;
  int out_ = -1, err_ = -1;
  Finished finished_;
};

}  // namespace statcollect::testing

#endif  // STATCOLLECT_TESTS_CLIENT_PROCESS_H_
