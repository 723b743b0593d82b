#include "bench/ingest/target.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include <grpcpp/grpcpp.h>
#include <CLI/CLI.hpp>

#include "statcollect/v1/admin.grpc.pb.h"

namespace statcollect::bench {

void Target::AddFlags(CLI::App* command) {
  auto* collector = command->add_option("--collector", collector_,
                                        "Address of a running statcollectord, HOST:PORT");
  auto* spawn =
      command->add_option("--spawn", spawn_, "A statcollectord to start, and to stop in the end")
          ->excludes(collector);
  auto* data_dir = command->add_option("--data-dir", data_dir_,
                                       "Its data folder; with --collector: measured only");
  spawn->needs(data_dir);
  command->add_option("--durability", durability_, "Of the spawned daemon: fsync or process")
      ->check(CLI::IsMember({"fsync", "process"}))
      ->capture_default_str();
}

Status Target::Start() {
  if (collector_.empty() == spawn_.empty()) {
    return Status(
        Code::kInvalidArgument,
        "choose a collector: found neither --collector nor --spawn; expected one of them");
  }
  address_ = collector_;
  if (spawns()) {
    auto started = SpawnedServer::Start(spawn_, DaemonArguments(data_dir_, durability_));
    if (!started.ok()) return started.status();
    server_.emplace(*std::move(started));
    address_ = server_->address();
  }
  const auto status = GetStatus();
  if (!status.ok()) return status.status();
  pid_ = static_cast<pid_t>(status->pid());
  return Status::Ok();
}

Status Target::Stop(ProcessUse* use) {
  const Status stopped = server_->Stop(use);
  server_.reset();
  return stopped;
}

std::optional<ProcessUse> Target::Use() const {
  const auto use = ReadUse(pid_);
  return use.ok() ? std::optional(*use) : std::nullopt;
}

Status Target::ForEachFile(bool read) const {
  std::vector<char> buffer(1 << 20);
  for (const auto& entry : std::filesystem::directory_iterator(data_dir_)) {
    if (!entry.is_regular_file()) continue;
    const int file = open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) {
      return Status(Code::kUnavailable, "open " + entry.path().string() + ": " +
                                            std::strerror(errno) + "; expected the daemon's file");
    }
    if (!read) (void)posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    while (read && ::read(file, buffer.data(), buffer.size()) > 0) {
    }
    close(file);
  }
  return Status::Ok();
}

Result<v1::GetStatusResponse> Target::GetStatus() const {
  const auto stub =
      v1::Admin::NewStub(grpc::CreateChannel(address_, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  v1::GetStatusResponse response;
  const grpc::Status status = stub->GetStatus(&context, {}, &response);
  if (status.ok()) return response;
  return Status(static_cast<Code>(status.error_code()),
                "ask the collector at " + address_ + " for its status: " + status.error_message());
}

}  // namespace statcollect::bench
