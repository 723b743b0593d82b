#include "client/session.h"

#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <thread>

#include <fmt/format.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <pthread.h>

#include "common/names.h"
#include "proto/json.h"

namespace statcollect::client {
namespace {

constexpr int kAnswerBytesMax = 1 << 30;  // a series or a full diff may be long

std::mutex call_mutex;
grpc::ClientContext* call = nullptr;  // guarded by call_mutex
bool interrupted = false;             // guarded by call_mutex

std::shared_ptr<grpc::Channel> Connect(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kAnswerBytesMax);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

Session::Session(const GlobalOptions& options, const Terminal& terminal)
    : options_(options), terminal_(terminal) {
  const auto channel = Connect(options_.collector);
  query_ = v1::Query::NewStub(channel);
  admin_ = v1::Admin::NewStub(channel);
}

void Session::Prepare(grpc::ClientContext& context) {
  if (options_.timeout_seconds > 0) {
    context.set_deadline(
        std::chrono::system_clock::now() +
        std::chrono::milliseconds(static_cast<std::int64_t>(options_.timeout_seconds * 1000)));
  }
  std::lock_guard lock(call_mutex);
  call = &context;
  if (interrupted) context.TryCancel();
}

int Session::Fail(const std::string& attempted, const grpc::Status& status) const {
  {
    std::lock_guard lock(call_mutex);
    call = nullptr;
    if (interrupted) {
      std::cerr << "statctl: " << attempted << ": interrupted\n";
      return kExitInterrupted;
    }
  }
  std::string message = Printable(status.error_message(), 4000);
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE &&
      message.find("shutting down") == std::string::npos) {
    message = fmt::format(
        "no collector answers at {}; expected a running statcollectord; start one, or name it with "
        "--collector HOST:PORT or "
        "STATCTL_COLLECTOR ({})",
        Printable(options_.collector), message);
  } else if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    message = fmt::format("no answer from {} within {} s; give it more with --timeout",
                          Printable(options_.collector), options_.timeout_seconds);
  } else if (status.error_code() == grpc::StatusCode::NOT_FOUND) {
    message += fmt::format(" (collector {})", Printable(options_.collector));
  }
  std::cerr << "statctl: " << attempted << ": " << message << '\n';
  return kExitNoAnswer;
}

void Session::PrintJson(const google::protobuf::Message& message) const {
  std::cout << DumpJson(ToJson(message)) << '\n';
}

void Session::Print(const Page& page) const {
  std::cout << (options_.format == "markdown" ? page.ToMarkdown() : page.ToText(terminal_));
}

void Session::PrintCsv(const Table& table) const { std::cout << table.ToCsv(); }

void Session::PrintTable(const Table& table) const {
  if (csv()) return PrintCsv(table);
  Page page;
  page.AddTable(table);
  Print(page);
}

// Signals are taken by a thread that waits for them: cancelling a call is nothing for a signal handler.
void HandleInterrupts() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread([signals] {
    int signal = 0;
    while (sigwait(&signals, &signal) == 0) {
      std::lock_guard lock(call_mutex);
      if (interrupted || call == nullptr) std::_Exit(kExitInterrupted);
      interrupted = true;
      call->TryCancel();
    }
  }).detach();
}

bool Interrupted() {
  std::lock_guard lock(call_mutex);
  return interrupted;
}

std::int64_t NowUnixNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

Result<std::vector<std::uint32_t>> ParseRanks(const std::string& text) {
  constexpr std::uint32_t kRanksMax = 1u << 20;
  std::vector<std::uint32_t> ranks;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    const std::string part = text.substr(at, comma - at);
    std::uint32_t first = 0, last = 0;
    const char* const end = part.data() + part.size();
    auto parsed = std::from_chars(part.data(), end, first);
    last = first;
    if (parsed.ec == std::errc() && parsed.ptr != end && *parsed.ptr == '-')
      parsed = std::from_chars(parsed.ptr + 1, end, last);
    if (parsed.ec != std::errc() || parsed.ptr != end || last < first || last >= kRanksMax) {
      return Status(Code::kInvalidArgument,
                    "--rank: '" + Printable(part) + "' is no rank; expected numbers such as 0,1,4-7");
    }
    for (std::uint32_t rank = first; rank <= last; ++rank) ranks.push_back(rank);
    at = comma + 1;
  }
  return ranks;
}

Result<std::vector<v1::Kind>> ParseKinds(const std::string& text) {
  std::vector<v1::Kind> kinds;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    const std::string part = text.substr(at, comma - at);
    const auto kind = ParseKind(part);
    if (!kind) {
      std::string known;
      for (int i = 1; i < kKindCount; ++i)
        known += (i > 1 ? ", " : "") + std::string(Name(static_cast<Kind>(i)));
      return Status(Code::kInvalidArgument, "'" + Printable(part) + "' is no kind; expected " + known);
    }
    kinds.push_back(static_cast<v1::Kind>(*kind));
    at = comma + 1;
  }
  return kinds;
}

int UsageError(const std::string& message) {
  std::cerr << "statctl: " << message << '\n';
  return kExitNoAnswer;
}

}  // namespace statcollect::client
