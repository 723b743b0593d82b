// The real statctl against the real services on a loopback port, with three runs: base, ort
// (differs from step 3 on) and base2 (as base).
#ifndef STATCOLLECT_TESTS_CLIENT_STATCTL_FIXTURE_H_
#define STATCOLLECT_TESTS_CLIENT_STATCTL_FIXTURE_H_

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/client/process.h"
#include "tests/server/api/query_server.h"
#include "tests/server/query/run_writer.h"

namespace statcollect::testing {

inline void WriteRun(Store& store, const std::string& run, double wrong_from_step_3 = 0) {
  RunWriter writer(store, run, 2);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    writer.Config(rank, {{"lr", run == "base" ? "0.1" : "0.2\x1b[31m"}});
    for (std::uint64_t step = 0; step < 6; ++step) {
      const double wrong = step >= 3 ? wrong_from_step_3 : 0;
      writer.Observe(rank, step, Key("embed"), {.values = {1, 2, 3, 4}});
      writer.Observe(rank, step, Key("blocks.1.ln2", Kind::kOutput, "0"),
                     {.values = {1, -2, 3 + wrong, 4}, .shape = {2, 2}});
      writer.Observe(rank, step, Key("head"), {.values = {0, 0, 1 + wrong, 1}});
      writer.Scalar(rank, step, "loss", 2.0 / (1.0 + static_cast<double>(step)));
    }
    writer.Event(rank, 2, "graph_transition", "a module\x1b[31m appeared");
  }
  writer.Commit();
}

// A loopback port that accepts connections and never answers.
class SilentPort {
 public:
  SilentPort() : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    ok_ = bind(fd_, reinterpret_cast<sockaddr*>(&address), size) == 0 && listen(fd_, 4) == 0 &&
          getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) == 0;
    port_ = ntohs(address.sin_port);
  }
  virtual ~SilentPort() { close(fd_); }
  bool ok() const { return ok_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 protected:
  // -1 after Shutdown.
  int Accept() const { return accept(fd_, nullptr, nullptr); }
  void Shutdown() const { shutdown(fd_, SHUT_RDWR); }

 private:
  int fd_;
  bool ok_ = false;
  int port_ = 0;
};

class Statctl : public ::testing::Test {
 protected:
  Statctl() {
    WriteRun(server_.store, "base");
    WriteRun(server_.store, "ort", 0.5);
    WriteRun(server_.store, "base2");
  }
  std::vector<std::string> Command(const std::vector<std::string>& arguments) const {
    std::vector<std::string> command = {STATCTL, "--collector", server_.address()};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return command;
  }
  Finished Run(const std::vector<std::string>& arguments) const {
    return Process(Command(arguments)).Wait();
  }
  Finished RunOnTerminal(const std::vector<std::string>& arguments,
                         const std::map<std::string, std::string>& environment = {}) const {
    return Process(Command(arguments), environment, Process::Input::kTerminal).Wait();
  }
  nlohmann::json RunJson(std::vector<std::string> arguments, int code = 0) const {
    arguments.insert(arguments.end(), {"--format", "json"});
    const Finished done = Run(arguments);
    EXPECT_EQ(done.code, code) << done.err;
    return nlohmann::json::parse(done.out);
  }

  QueryServer server_;
};

inline std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

}  // namespace statcollect::testing

#endif  // STATCOLLECT_TESTS_CLIENT_STATCTL_FIXTURE_H_
