// A statcollectord process that a test starts, kills and starts again on the same data and port.
#ifndef STATCOLLECT_TESTS_FAULTS_DAEMON_H_
#define STATCOLLECT_TESTS_FAULTS_DAEMON_H_

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace statcollect::testing {

// A port that nobody listens on now.
inline int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  bind(fd, reinterpret_cast<sockaddr*>(&address), size);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  close(fd);
  return ntohs(address.sin_port);
}

class Daemon {
 public:
  Daemon(std::string program, std::string data_dir, int port)
      : program_(std::move(program)), data_dir_(std::move(data_dir)), port_(port) {}
  ~Daemon() { Kill(); }
  Daemon(const Daemon&) = delete;

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  const std::string& data_dir() const { return data_dir_; }
  // What it writes to standard error, over all starts.
  std::string log_path() const { return data_dir_ + ".log"; }
  pid_t pid() const { return pid_; }

  // With "NAME=value" variables on top of the environment. True: it is ready; how long that took is
  // in `ready_after`. False: it ended before that.
  bool Start(const std::vector<std::string>& variables = {}) {
    std::vector<std::string> arguments = {program_,   "--data-dir",      data_dir_,
                                          "--listen", address(),         "--http",
                                          "off",      "--disk-free-min", "1"};
    std::vector<char*> argv, environment;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    std::vector<std::string> own = variables;
    for (char** variable = environ; *variable != nullptr; ++variable)
      environment.push_back(*variable);
    for (std::string& variable : own) environment.push_back(variable.data());
    environment.push_back(nullptr);
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return false;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log_path().c_str(),
                                     O_WRONLY | O_CREAT | O_APPEND, 0600);
    const auto begin = std::chrono::steady_clock::now();
    const int spawned =
        posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environment.data());
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    std::string line;
    char c = 0;
    while (spawned == 0 && read(ends[0], &c, 1) == 1 && c != '\n') line.push_back(c);
    close(ends[0]);
    ready_after = std::chrono::steady_clock::now() - begin;
    return line.find(" ready: ") != std::string::npos;
  }
  void Signal(int signal) const { kill(pid_, signal); }
  // Whether it has ended within the time, and how.
  bool WaitFor(std::chrono::milliseconds timeout, int* status = nullptr) {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    while (pid_ > 0 && waitpid(pid_, &ended_, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() >= deadline) return false;
      usleep(2000);
    }
    pid_ = -1;
    if (status != nullptr) *status = ended_;
    return true;
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(std::exchange(pid_, -1), nullptr, 0);
  }

  std::chrono::steady_clock::duration ready_after{};

 private:
  const std::string program_, data_dir_;
  const int port_;
  pid_t pid_ = -1;
  int ended_ = 0;  // how the last process did, once it was waited for
};

}  // namespace statcollect::testing

#endif  // STATCOLLECT_TESTS_FAULTS_DAEMON_H_
