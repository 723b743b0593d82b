#include "client/commands/session.h"

#include <pthread.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <thread>

#include "common/clock.h"
#include "proto/json.h"

namespace statcollect::client {
namespace {

sigset_t Interrupt() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  return signals;
}

// The user interrupted the command, so no message is needed.
int Interrupted() {
  std::fputs("statctl: interrupted\n", stderr);
  return kExitInterrupted;
}

// Whether the message begins with what was attempted: "keep run 'x': there is no such run". Then all that its first clause
// quotes is named in `attempted`.
bool SaysWhatWasAttempted(const std::string& message, const std::string& attempted) {
  const std::size_t end = message.find(": ");
  if (end == std::string::npos) return false;
  const std::string clause = message.substr(0, end);
  std::size_t open = clause.find('\'');
  if (open == std::string::npos || clause.find(';') != std::string::npos) return false;
  for (; open != std::string::npos;) {
    const std::size_t close = clause.find('\'', open + 1);
    if (close == std::string::npos) return false;
    if (attempted.find(clause.substr(open + 1, close - open - 1)) == std::string::npos) return false;
    open = clause.find('\'', close + 1);
  }
  return true;
}

}  // namespace

int Session::Fail(const std::string& attempted, const Status& status) const {
  if (status.code() == Code::kCancelled) return Interrupted();
  const bool itself = SaysWhatWasAttempted(status.message(), attempted);
  return UsageError(itself ? status.message() : attempted + ": " + status.message());
}

void Session::PrintJson(const google::protobuf::Message& message) const {
  std::cout << DumpJson(ToJson(message)) << '\n';
}

void Session::PrintCsv(const Table& table) const { std::cout << table.ToCsv(terminal_.out); }

void Session::PrintLine(const std::string& line) const { std::cout << line << '\n'; }

void Session::PrintPage(const Page& page) const {
  std::cout << (options_.format == Format::kMarkdown ? page.ToMarkdown() : page.ToText(terminal_));
}

void Session::Remark(const std::string& sentence) const {
  if (!options_.quiet) std::cerr << sentence << '\n';
}

void BlockInterrupts() {
  const sigset_t interrupt = Interrupt();
  pthread_sigmask(SIG_BLOCK, &interrupt, nullptr);
}

// The signal is taken by a thread that waits for it: cancelling a call is nothing for a signal handler.
void WatchInterrupts(const std::shared_ptr<Collector>& collector) {
  std::thread([collector] {
    const sigset_t interrupt = Interrupt();
    int signal = 0;
    while (sigwait(&interrupt, &signal) == 0) {
      if (collector->Cancel()) continue;
      if (isatty(STDERR_FILENO)) std::fputc('\n', stderr);  // from behind the question, or a table's half
      std::_Exit(Interrupted());
    }
  }).detach();
}

std::int64_t NowUnixNanos() { return SystemClock().UnixNanos(); }

int UsageError(const std::string& message) {
  std::cerr << "statctl: " << message << '\n';
  return kExitNoAnswer;
}

}  // namespace statcollect::client
