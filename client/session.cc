#include "client/session.h"

#include <pthread.h>

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <thread>

#include "common/clock.h"
#include "proto/json.h"

namespace statcollect::client {

int Session::Fail(const std::string& attempted, const Status& status) const {
  std::cerr << "statctl: " << attempted << ": " << status.message() << '\n';
  return status.code() == Code::kCancelled ? kExitInterrupted : kExitNoAnswer;
}

void Session::PrintJson(const google::protobuf::Message& message) const {
  std::cout << DumpJson(ToJson(message)) << '\n';
}

void Session::PrintCsv(const Table& table) const { std::cout << table.ToCsv(terminal_.out); }

void Session::PrintPage(const Page& page) const {
  std::cout << (options_.format == Format::kMarkdown ? page.ToMarkdown() : page.ToText(terminal_));
}

void Session::Remark(const std::string& sentence) const {
  if (!options_.quiet) std::cerr << sentence << '\n';
}

// The signal is taken by a thread that waits for it: cancelling a call is nothing for a signal handler.
void HandleInterrupts(const std::shared_ptr<Collector>& collector) {
  sigset_t interrupt;
  sigemptyset(&interrupt);
  sigaddset(&interrupt, SIGINT);
  pthread_sigmask(SIG_BLOCK, &interrupt, nullptr);
  std::thread([collector, interrupt] {
    int signal = 0;
    while (sigwait(&interrupt, &signal) == 0) {
      if (!collector->Cancel()) std::_Exit(kExitInterrupted);
    }
  }).detach();
}

std::int64_t NowUnixNanos() { return SystemClock().UnixNanos(); }

int UsageError(const std::string& message) {
  std::cerr << "statctl: " << message << '\n';
  return kExitNoAnswer;
}

}  // namespace statcollect::client
