// statctl golden save, and loading what it saved.
#include "client/commands/golden.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/commands/selection.h"
#include "client/exports/output.h"
#include "client/imports/golden_file.h"
#include "client/render/progress_bar.h"
#include "client/rpc/ingest_sender.h"
#include "common/names.h"
#include "common/rank_set.h"
#include "common/saturating.h"

namespace statcollect::client {
namespace {

constexpr std::chrono::milliseconds kGoldenPatience{30'000};
constexpr char kAgentVersion[] =
    "agent.version";  // a setting that the collector adds to those of the agent
using SessionOf = std::pair<std::uint32_t, std::uint32_t>;  // attempt, rank

// Without what says where it ran and changes from one launch to the next.
v1::GetRunResponse Portable(v1::GetRunResponse run) {
  run.clear_events();
  for (v1::AttemptInfo& attempt : *run.mutable_attempts()) {
    for (v1::RankInfo& rank : *attempt.mutable_ranks()) {
      rank.clear_host();
      rank.clear_pid();
    }
  }
  return run;
}

// What the file says about the run, besides its records.
Result<v1::GetRunResponse> Describe(Session& session, const std::string& name) {
  v1::GetRunRequest question;
  question.set_run(name);
  auto run = session.collector().GetRun(question);
  if (!run.ok()) return run.status();
  v1::CompareConfigRequest settings;
  settings.set_run_a(name);
  const auto config = session.collector().CompareConfig(settings);
  if (!config.ok()) return config.status();
  for (const v1::ConfigItem& item : config->items()) {
    if (item.key() == kAgentVersion) (*run->mutable_config())[kAgentVersion] = item.a();
  }
  return Portable(*std::move(run));
}

Status Save(Session& session, const GoldenOptions& options) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(options.run));
  v1::ReadRecordsRequest request;
  request.set_run(options.run);
  request.set_sketches(true);
  request.set_samples(true);
  STATCOLLECT_RETURN_IF_ERROR(Select(options.ranks, options.steps, request));
  const auto run = Describe(session, options.run);
  if (!run.ok()) return run.status();
  const Collector::Task task(session.collector());  // an interrupted save removes what it made
  auto partial = Partial::File(options.path, options.overwrite);
  if (!partial.ok()) return partial.status();
  auto file = FileWriter::Create(partial->path());
  if (!file.ok()) return file.status();
  STATCOLLECT_RETURN_IF_ERROR(file->Write(GoldenHead(*run)));
  std::uint64_t messages = 0, tensors = 0, bytes = 0;
  {
    ProgressBar bar("saving", session.terminal().err && !session.options().quiet);
    STATCOLLECT_RETURN_IF_ERROR(
        session.collector().ReadRecords(request, [&](const v1::ReadRecordsResponse& message) {
          bar.Draw(message.progress().done(), message.progress().total(), tensors);
          if (!message.has_records()) return Status::Ok();
          v1::ReadRecordsResponse kept = message;
          kept.clear_progress();
          ++messages;
          tensors += static_cast<std::uint64_t>(message.records().stats().activation_size());
          const std::string frame = GoldenFrame(kept);
          bytes += frame.size();
          return file->Write(frame);
        }));
  }
  if (tensors == 0)
    return {Code::kNotFound, "nothing matches; expected tensors in these steps and ranks"};
  STATCOLLECT_RETURN_IF_ERROR(file->Write(GoldenEnd(messages, tensors)));
  STATCOLLECT_RETURN_IF_ERROR(file->Close(true));
  STATCOLLECT_RETURN_IF_ERROR(partial->Commit());
  session.Remark(fmt::format("saved {} tensors of run {} to {}, {}", FormatCount(tensors),
                             options.run, Printable(options.path, 1000), FormatBytes(bytes)));
  return Status::Ok();
}

// A golden that was read to its end once.
struct Checked {
  v1::GetRunResponse run;
  std::set<SessionOf> sessions;
  std::uint64_t tensors = 0;
  std::string name;  // of the run that it becomes
};

Result<Checked> Check(const std::string& path) {
  auto reader = GoldenReader::Open(path);
  if (!reader.ok()) return reader.status();
  Checked golden{.run = (*reader)->run()};
  while (true) {
    const auto message = (*reader)->Next();
    if (!message.ok()) return message.status();
    if (!*message) break;
    golden.sessions.emplace((*message)->attempt(), (*message)->rank());
  }
  golden.tensors = (*reader)->tensors();
  golden.name = fmt::format("golden-{:08x}-{}", (*reader)->checksum(), (*reader)->bytes());
  return golden;
}

SessionInfo InfoOf(const Checked& golden, SessionOf of) {
  SessionInfo info{.run = golden.name, .session = RandomSessionId()};
  const auto [attempt, rank] = of;
  info.launch = fmt::format("golden-{}", attempt);
  info.if_exists = attempt == golden.sessions.begin()->first ? IfExists::kError : IfExists::kAppend;
  info.rank = rank;
  info.world_size = std::max(golden.run.summary().world_size(),
                             SaturatingAdd(golden.sessions.rbegin()->second, 1));
  info.world_size = std::max(info.world_size, SaturatingAdd(rank, 1));
  info.host = "golden";
  info.pid = 1;
  info.start_unix_nanos = golden.run.summary().start_unix_nanos();
  for (const auto& [key, value] : golden.run.config()) info.config[key] = value;
  // A golden has no hello; the setting says which ranks of the world recorded.
  if (const auto found = info.config.find("recording.ranks"); found != info.config.end()) {
    const auto ranks = RankSet::Parse(found->second, info.world_size);
    if (ranks.ok() && ranks->Contains(rank)) info.ranks = ranks->Text();
  }
  if (const auto version = info.config.extract(kAgentVersion); !version.empty())
    info.agent_version = version.mapped();
  return info;
}

// Sends what one process recorded.
Status SendSession(Session& session, const std::string& path, const Checked& golden, SessionOf of) {
  auto reader = GoldenReader::Open(path);
  if (!reader.ok()) return reader.status();
  IngestSender sender({.address = session.collector().address(),
                       .token_file = session.collector().token_file(),
                       .project = session.collector().project(),
                       .tls = session.collector().tls(),
                       .patience = kGoldenPatience},
                      InfoOf(golden, of));
  const auto cancel = session.collector().OnCancel([&sender] { sender.Cancel(); });
  v1::Records pending;  // definitions without records wait for the next message
  while (true) {
    auto message = (*reader)->Next();
    if (!message.ok()) return message.status();
    if (!*message) break;
    if (SessionOf{(*message)->attempt(), (*message)->rank()} != of) continue;
    pending.MergeFrom((*message)->records());
    const std::uint64_t count = RecordsIn(pending);
    if (count == 0) continue;
    STATCOLLECT_RETURN_IF_ERROR(sender.SendEncoded(count, pending.SerializeAsString()));
    pending.Clear();
  }
  return sender.Finish({});
}

// Whether the collector has all of it. A run of which a part is missing, because its loading was
// interrupted, is removed.
Result<bool> IsThere(Session& session, const Checked& golden) {
  v1::GetRunRequest question;
  question.set_run(golden.name);
  const auto found = session.collector().GetRun(question);
  if (found.status().code() == Code::kNotFound) return false;
  if (!found.ok()) return found.status();
  std::uint64_t tensors = 0;
  for (const v1::AttemptInfo& attempt : found->attempts()) {
    for (const v1::RankInfo& rank : attempt.ranks()) tensors += rank.stat_records();
  }
  if (tensors == golden.tensors) return true;
  v1::DeleteRunRequest request;
  request.set_run(golden.name);
  const auto removed = session.collector().DeleteRun(request);
  return removed.ok() ? Result<bool>(false) : removed.status();
}

}  // namespace

Result<std::string> LoadGolden(Session& session, const std::string& path, const std::string& name) {
  const auto wrong = [&path](const Status& status) {
    return Status(status.code(), "golden '" + Printable(path, 1000) + "': " + status.message());
  };
  auto golden = Check(path);
  if (!golden.ok()) return wrong(golden.status());
  if (!name.empty()) golden->name = name;
  if (golden->sessions.empty()) return wrong({Code::kDataLoss, "it has no records"});
  const Collector::Task task(session.collector());
  const auto there = IsThere(session, *golden);
  if (!there.ok()) return there.status();
  for (const SessionOf& of : golden->sessions) {
    if (*there) break;
    if (const Status sent = SendSession(session, path, *golden, of); !sent.ok()) return wrong(sent);
  }
  return golden->name;
}

int SaveGolden(Session& session, const GoldenOptions& options) {
  const Status status = Save(session, options);
  return status.ok() ? kExitSame : session.Fail("golden save " + Printable(options.run), status);
}

}  // namespace statcollect::client
