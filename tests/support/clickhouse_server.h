// A real clickhouse-server on loopback with a temporary folder, that a test starts, kills and
// starts again.
#ifndef STATCOLLECT_TESTS_SUPPORT_CLICKHOUSE_SERVER_H_
#define STATCOLLECT_TESTS_SUPPORT_CLICKHOUSE_SERVER_H_

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace statcollect::testing {

class ClickHouseServer {
 public:
  // The program's path; empty: it is not installed.
  static std::string Program() {
    for (const char* path : {"/usr/sbin/clickhouse-server", "/usr/bin/clickhouse-server"})
      if (access(path, X_OK) == 0) return path;
    return "";
  }

  // `config`: the folder tests/support/clickhouse, which is copied, because the server writes
  // beside its configuration.
  explicit ClickHouseServer(const std::string& config) {
    std::string pattern = "/tmp/statcollect_clickhouse_XXXXXX";
    folder_ = mkdtemp(pattern.data());
    for (const char* name : {"config.xml", "users.xml"})
      std::filesystem::copy_file(config + "/" + name, folder_ + "/" + name);
    port_ = UnusedPort();
  }
  ~ClickHouseServer() {
    Kill();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  ClickHouseServer(const ClickHouseServer&) = delete;
  ClickHouseServer& operator=(const ClickHouseServer&) = delete;

  std::string Dsn(const std::string& database, const std::string& user = "") const {
    return "clickhouse://" + (user.empty() ? "" : user + "@") +
           "127.0.0.1:" + std::to_string(port_) + "/" + database;
  }
  int port() const { return port_; }
  std::string log_path() const { return folder_ + "/server.log"; }

  // True: it answers.
  bool Start() {
    const std::string root = folder_ + "/";
    std::vector<std::string> arguments = {Program(),
                                          "--config-file=" + root + "config.xml",
                                          "--",
                                          "--path=" + root,
                                          "--tmp_path=" + root + "tmp/",
                                          "--format_schema_path=" + root + "schemas/",
                                          "--http_port=" + std::to_string(port_)};
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    for (const int fd : {STDOUT_FILENO, STDERR_FILENO})
      posix_spawn_file_actions_addopen(&actions, fd, log_path().c_str(),
                                       O_WRONLY | O_CREAT | O_APPEND, 0600);
    const int spawned = posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    for (int i = 0; spawned == 0 && i < 600; ++i) {
      if (Answers()) return true;
      if (waitpid(pid_, nullptr, WNOHANG) == pid_) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return false;
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(std::exchange(pid_, -1), nullptr, 0);
  }
  // Nothing answers any more, and nothing is lost: as a machine that the network does not reach.
  void Freeze() const { kill(pid_, SIGSTOP); }
  void Thaw() const { kill(pid_, SIGCONT); }

 private:
  static sockaddr_in Loopback(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    return address;
  }
  static int UnusedPort() {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = Loopback(0);
    socklen_t size = sizeof address;
    bind(fd, reinterpret_cast<sockaddr*>(&address), size);
    getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
    close(fd);
    return ntohs(address.sin_port);
  }
  bool Answers() const {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = Loopback(port_);
    const bool connected = connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    close(fd);
    return connected;
  }

  std::string folder_;
  int port_ = 0;
  pid_t pid_ = -1;
};

}  // namespace statcollect::testing

#endif  // STATCOLLECT_TESTS_SUPPORT_CLICKHOUSE_SERVER_H_
