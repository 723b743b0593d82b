#include "client/commands/session.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string_view>
#include <thread>
#include <utility>

#include "common/clock.h"
#include "common/text.h"
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

// Whether the text has the word, and not as a part of a longer one.
bool HasWord(std::string_view text, std::string_view word) {
  const auto is_end = [&](std::size_t at) {
    return at >= text.size() || text[at] == ' ' || text[at] == '\'' || text[at] == ',' ||
           text[at] == ';';
  };
  for (std::size_t at = text.find(word); at != std::string_view::npos;
       at = text.find(word, at + 1)) {
    if ((at == 0 || is_end(at - 1)) && is_end(at + word.size())) return true;
  }
  return false;
}

// Whether the message says itself what was attempted, as "top of run 'base': ...", or names all of
// its objects first, as "no run 'base'; ...". Objects: the words of `attempted` after the first,
// that are not the command's.
bool SaysItself(std::string_view message, std::string_view attempted, std::string_view command) {
  const std::string_view subject =
      message.substr(0, std::min(message.find(": "), message.find(';')));
  std::size_t objects = 0, named = 0;
  bool is_verb = true;
  for (const std::string_view word : PartsOf(attempted, ' ')) {
    if (std::exchange(is_verb, false) || HasWord(command, word)) continue;
    ++objects;
    named += HasWord(subject, word) ? 1 : 0;
  }
  const bool is_attempt = subject.size() < message.size() && message[subject.size()] == ':';
  return named > 0 && (is_attempt || named == objects);
}

}  // namespace

int Session::Fail(const std::string& attempted, const Status& status) const {
  if (status.code() == Code::kCancelled) return Interrupted();
  const bool says_itself = SaysItself(status.message(), attempted, options_.command);
  return UsageError(says_itself ? status.message() : attempted + ": " + status.message());
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

// The signal is taken by a thread that waits for it: cancelling a call is nothing for a signal
// handler.
void WatchInterrupts(const std::shared_ptr<Collector>& collector) {
  std::thread([collector] {
    const sigset_t interrupt = Interrupt();
    int signal = 0;
    while (sigwait(&interrupt, &signal) == 0) {
      if (collector->Cancel()) continue;
      if (isatty(STDERR_FILENO))
        std::fputc('\n', stderr);  // from behind the question, or a table's half
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
