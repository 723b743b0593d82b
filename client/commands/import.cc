#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/commands/import_spill.h"
#include "client/formats/dump.h"
#include "client/formats/recognise.h"
#include "client/imports/record_batcher.h"
#include "client/rpc/ingest_sender.h"
#include "common/clock.h"
#include "common/names.h"
#include "common/redact.h"
#include "common/text.h"
#include "proto/json.h"

namespace statcollect::client {
namespace {

using formats::Dump;
using formats::DumpFormat;
using formats::Reading;
using formats::Tally;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kPatience{30'000}, kDrawEvery{100};
constexpr double kMegabyte = 1e6;

double SecondsSince(steady_clock::time_point begin) {
  return std::chrono::duration<double>(steady_clock::now() - begin).count();
}

// "importing [====>    ] 40 %  123 MB, 45,000 records, 85 MB/s" on standard error, rewritten in
// place, erased at the end.
class ImportProgress {
 public:
  ImportProgress(bool shown, const std::string& path)
      : shown_(shown), total_(shown ? formats::BytesBelow(path) : 0) {}
  ~ImportProgress() { Erase(); }
  ImportProgress(const ImportProgress&) = delete;
  ImportProgress& operator=(const ImportProgress&) = delete;

  void Begin(const char* doing) {
    doing_ = doing;
    begin_ = drawn_at_ = steady_clock::now();
  }
  void Draw(std::uint64_t bytes, std::uint64_t records) {
    if (!shown_) return;
    const auto now = steady_clock::now();
    if (now < drawn_at_ + kDrawEvery) return;
    drawn_at_ = now;
    constexpr std::size_t kWidth = 24;
    const double share =
        total_ > 0 ? std::min(1.0, static_cast<double>(bytes) / static_cast<double>(total_)) : 0;
    const std::string filled(static_cast<std::size_t>(share * kWidth), '=');
    const double seconds = std::max(SecondsSince(begin_), 1e-3),
                 megabytes = static_cast<double>(bytes) / kMegabyte;
    std::fputs(
        fmt::format(
            "\r{} [{:<{}}] {:3.0f} %  {:.0f} MB, {} records, {:.0f} MB/s, {} records/s\x1b[K",
            doing_, filled, kWidth, share * 100, megabytes, FormatCount(records),
            megabytes / seconds,
            FormatCount(static_cast<std::uint64_t>(static_cast<double>(records) / seconds)))
            .c_str(),
        stderr);
    drawn_ = true;
  }
  void Erase() {
    if (drawn_) std::fputs("\r\x1b[K", stderr);
    drawn_ = false;
  }

 private:
  const bool shown_;
  const std::uint64_t total_;
  const char* doing_ = "";
  steady_clock::time_point begin_, drawn_at_;
  bool drawn_ = false;
};

class NoOutput final : public BatchOutput {
 public:
  Status Send(RecordBatch) override { return Status::Ok(); }
};

// What was read and stored so far.
struct Totals {
  std::uint64_t records = 0, steps = 0, stored = 0;
  std::optional<std::uint64_t> first_step, last_step;
  std::uint32_t attempt = 0;
  double seconds = 0;

  void Add(const RecordBatcher& batcher) {
    records += batcher.records();
    steps = std::max(steps, batcher.steps());
    if (const auto first = batcher.first_step())
      first_step = std::min(first_step.value_or(*first), *first);
    if (const auto last = batcher.last_step())
      last_step = std::max(last_step.value_or(*last), *last);
  }
};

std::string HostName() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? std::string(name.data()) : std::string();
}

std::string RandomLaunch() {
  std::string launch = "import-";
  for (const std::uint8_t byte : RandomSessionId()) launch += fmt::format("{:02x}", byte);
  return launch;
}

class Importer {
 public:
  Importer(Session& session, const ImportOptions& options)
      : session_(session),
        options_(options),
        attempted_("import " + options.format + " " + Printable(options.path, 1000)) {}

  int Run() {
    if (const Status wrong = Prepare(); !wrong.ok()) return session_.Fail(attempted_, wrong);
    ImportProgress progress(session_.terminal().err && !session_.options().quiet, options_.path);
    progress_ = &progress;
    if (options_.strict && !options_.dry_run) {
      Tally scratch;
      progress.Begin("checking ");
      Totals totals;
      if (const Status bad = ReadAll(scratch, true, totals); !bad.ok()) {
        progress.Erase();
        return session_.Fail(attempted_,
                             {bad.code(), bad.message() + "; nothing was stored (--strict)"});
      }
    }
    progress.Begin(options_.dry_run ? "reading " : "importing ");
    Tally tally;
    Totals totals;
    const auto begin = steady_clock::now();
    Status status = ReadAll(tally, options_.dry_run, totals);
    totals.seconds = SecondsSince(begin);
    progress.Erase();
    if (status.ok() && totals.records == 0) status = Nothing(tally);
    if (!status.ok()) return Stopped(status, totals);
    if (!options_.silent) Report(tally, totals);
    return kExitSame;
  }

 private:
  Status Prepare() {
    format_ = formats::ParseDumpFormat(options_.format).value();
    STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(options_.run));
    const auto steps = StepSet::Parse(options_.steps);
    if (!steps.ok()) return {steps.status().code(), "--steps: " + steps.status().message()};
    policy_ = ParseIfExists(options_.if_exists).value();
    if (!options_.launch.empty())
      STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("--launch", options_.launch));
    read_options_ = {.path = options_.path,
                     .rank = options_.rank,
                     .rank_pattern = options_.rank_pattern,
                     .steps = *steps,
                     .trust_std = options_.trust_std,
                     .samples = options_.samples,
                     .keep_going = options_.keep_going};
    launch_ = options_.launch.empty() ? RandomLaunch() : options_.launch;
    return options_.dry_run ? Status::Ok() : CheckCollector();
  }

  // Before a long dump is read: whether the collector is there, and the name is free.
  Status CheckCollector() {
    v1::GetRunRequest request;
    request.set_run(options_.run);
    const auto found = session_.collector().GetRun(request);
    if (!found.ok())
      return found.status().code() == Code::kNotFound ? Status::Ok() : found.status();
    if (policy_ != IfExists::kError || !options_.launch.empty()) return Status::Ok();
    const v1::RunSummary& run = found->summary();
    return {Code::kAlreadyExists, fmt::format("run '{}' exists ({} records, started {}); expected "
                                              "a new name; choose a different --run, "
                                              "or --if-exists replace to remove its data, or "
                                              "--if-exists append to add a launch to it",
                                              options_.run, FormatCount(run.records()),
                                              FormatAgo(run.start_unix_nanos(), NowUnixNanos()))};
  }

  Status ReadAll(Tally& tally, bool dry, Totals& totals) {
    const Reading reading{
        .options = read_options_, .tally = tally, .warn = [this](const Status& bad) {
          progress_->Erase();
          session_.Remark("statctl: skipped " + bad.message());
        }};
    auto dump = formats::OpenDump(format_, reading);
    if (!dump.ok()) return dump.status();
    ranks_ = (*dump)->ranks();
    STATCOLLECT_RETURN_IF_ERROR(CheckRanks());
    for (const std::uint32_t rank : ranks_)
      STATCOLLECT_RETURN_IF_ERROR(dry ? CheckRank(**dump, rank, tally, totals)
                                      : SendRank(**dump, rank, tally, totals));
    return Status::Ok();
  }

  Status CheckRanks() const {
    if (ranks_.back() < world_size()) return Status::Ok();
    return {
        Code::kInvalidArgument,
        fmt::format("--world-size: {}, but there is rank {}; expected more than the highest rank",
                    world_size(), ranks_.back())};
  }

  RecordBatcher MakeBatcher(BatchOutput& output, Tally& tally, const Totals& totals) {
    return RecordBatcher(
        output, tally, clock_,
        [this, &tally, before = totals.records, drawn = std::uint64_t{0}]() mutable {
          if (++drawn % 64 == 0) progress_->Draw(tally.bytes, before + drawn);
        });
  }

  Status CheckRank(Dump& dump, std::uint32_t rank, Tally& tally, Totals& totals) {
    NoOutput output;
    RecordBatcher batcher = MakeBatcher(output, tally, totals);
    const Status status = dump.Read(rank, batcher);
    totals.Add(batcher);
    return status;
  }

  // Records read before an error are stored, too; the caller reports that.
  Status SendRank(Dump& dump, std::uint32_t rank, Tally& tally, Totals& totals) {
    STATCOLLECT_RETURN_IF_ERROR(session_.collector().Locate());
    IngestSender sender({.address = session_.collector().address(),
                         .token_file = session_.collector().token_file(),
                         .project = session_.collector().project(),
                         .tls = session_.collector().tls(),
                         .patience = Patience()},
                        Hello(rank));
    const auto cancel = session_.collector().OnCancel([&sender] { sender.Cancel(); });
    RecordBatcher batcher = MakeBatcher(sender, tally, totals);
    const std::uint64_t bad_before = tally.skipped["bad file"];
    Status status = dump.Read(rank, batcher);
    if (!batcher.failed()) {
      Status sent = batcher.Flush();
      if (sent.ok())
        sent = sender.Finish(
            {{"bad_file", tally.skipped["bad file"] - bad_before + (status.ok() ? 0 : 1)}});
      if (status.ok()) status = sent;
    }
    if (tally.skipped["bad file"] == 0) tally.skipped.erase("bad file");
    totals.Add(batcher);
    totals.stored += sender.durable_records();
    totals.attempt = std::max(totals.attempt, sender.attempt());
    return status;
  }

  SessionInfo Hello(std::uint32_t rank) const {
    SessionInfo info;
    info.run = options_.run;
    info.session = RandomSessionId();
    info.launch = launch_;
    info.if_exists = policy_;
    info.rank = rank;
    info.world_size = world_size();
    info.host = HostName();
    info.pid = getpid();
    info.start_unix_nanos = clock_.UnixNanos();
    info.agent_version = "statctl " STATCOLLECT_VERSION;
    info.config = {{"import.format", options_.format},
                   {"import.path", StoredText(options_.path, 4000)}};
    if (!options_.rank_pattern.empty()) info.config["import.rank_pattern"] = options_.rank_pattern;
    if (format_ == DumpFormat::kOrt)
      info.config["import.untrusted"] = options_.trust_std ? "" : "std";
    return info;
  }

  std::uint32_t world_size() const { return options_.world_size.value_or(ranks_.back() + 1); }
  milliseconds Patience() const {
    return session_.options().timeout_seconds > 0
               ? milliseconds(static_cast<std::int64_t>(session_.options().timeout_seconds * 1000))
               : kPatience;
  }

  Status Nothing(const Tally& tally) const {
    std::string why;
    for (const auto& [cause, count] : tally.skipped)
      why += (why.empty() ? "; left out: " : ", ") + fmt::format("{} {}", count, cause);
    return {Code::kNotFound, "found no statistics" +
                                 (options_.steps.empty() ? "" : " in the steps " + options_.steps) +
                                 why + "; expected a dump of " + options_.format};
  }

  // An import that ended early: what is there now, and the ways on.
  int Stopped(const Status& why, const Totals& totals) const {
    std::string message;
    if (options_.dry_run) {
      message = fmt::format("{} records were read before", FormatCount(totals.records));
    } else if (totals.stored == 0) {
      message = "nothing was stored";
    } else {
      message = fmt::format(
          "stored so far: {} records of steps {}..{} (the last may be incomplete) in run '{}'; "
          "remove it "
          "with "
          "'statctl rm "
          "{}', or import again with --if-exists replace",
          FormatCount(totals.stored), totals.first_step.value_or(0), totals.last_step.value_or(0),
          options_.run, options_.run);
      if (!options_.keep_going && why.code() != Code::kCancelled)
        message += " and --keep-going to skip bad files";
    }
    if (why.code() == Code::kCancelled) {
      session_.Remark(attempted_ + ": " + message);
      return session_.Fail(attempted_, why);
    }
    return session_.Fail(attempted_, {why.code(), why.message() + "; " + message});
  }

  // --- the answer

  nlohmann::ordered_json Json(const Tally& tally, const Totals& totals) const {
    const double seconds = std::max(totals.seconds, 1e-6);
    nlohmann::ordered_json json = {
        {"run", options_.run},
        {"format", options_.format},
        {"path", Printable(options_.path, 4000)},
        {"dry_run", options_.dry_run},
        {"attempt", totals.attempt},
        {"records", totals.records},
        {"stored", totals.stored},
        {"steps",
         {{"count", totals.steps},
          {"first", totals.first_step.value_or(0)},
          {"last", totals.last_step.value_or(0)}}},
        {"ranks", ranks_},
        {"files", tally.files},
        {"bytes", tally.bytes},
        {"seconds", totals.seconds},
        {"megabytes_per_second", static_cast<double>(tally.bytes) / kMegabyte / seconds},
        {"records_per_second", static_cast<double>(totals.records) / seconds}};
    json["skipped"] = nlohmann::ordered_json::object();
    for (const auto& [cause, count] : tally.skipped) json["skipped"][cause] = count;
    json["untrusted"] = nlohmann::ordered_json::object();
    for (const auto& [statistic, count] : tally.untrusted) json["untrusted"][statistic] = count;
    json["notes"] = tally.notes;
    return json;
  }

  Table Facts(const Tally& tally, const Totals& totals) const {
    const double seconds = std::max(totals.seconds, 1e-6);
    Table table({{"what"}, {"value", Align::kLeft, true}});
    table.AddRow({"run", options_.run});
    table.AddRow({"records", FormatCount(totals.records)});
    table.AddRow(
        {"steps", fmt::format("{} ({}..{})", FormatCount(totals.steps),
                              totals.first_step.value_or(0), totals.last_step.value_or(0))});
    table.AddRow({"ranks", RanksText(ranks_)});
    table.AddRow(
        {"files", fmt::format("{} ({})", FormatCount(tally.files), FormatBytes(tally.bytes))});
    table.AddRow({"speed", fmt::format("{:.1f} MB/s, {} records/s, {:.2f} s",
                                       static_cast<double>(tally.bytes) / kMegabyte / seconds,
                                       FormatCount(static_cast<std::uint64_t>(
                                           static_cast<double>(totals.records) / seconds)),
                                       totals.seconds)});
    for (const auto& [cause, count] : tally.skipped)
      table.AddRow({"left out", FormatCount(count) + " " + cause});
    for (const auto& [statistic, count] : tally.untrusted)
      table.AddRow({"not compared",
                    statistic + " of " + FormatCount(count) + " records (not to be trusted)"});
    return table;
  }

  void Report(const Tally& tally, const Totals& totals) {
    if (session_.options().format == Format::kJson) {
      std::cout << DumpJson(Json(tally, totals)) << '\n';
    } else if (session_.options().format == Format::kCsv) {
      session_.PrintCsv(Facts(tally, totals));
    } else {
      Page page;
      page.AddSentence(fmt::format(
          "{} {} records of {} into run '{}'.", options_.dry_run ? "Would import" : "Imported",
          FormatCount(totals.records), Printable(options_.path), options_.run));
      page.AddTable(Facts(tally, totals));
      page.AddItems({tally.notes.begin(), tally.notes.end()});
      session_.PrintPage(page);
    }
  }

  Session& session_;
  const ImportOptions& options_;
  const std::string attempted_;
  const SystemClock clock_;
  DumpFormat format_ = DumpFormat::kOrt;
  IfExists policy_ = IfExists::kError;
  formats::ReadOptions read_options_;
  std::string launch_;
  std::vector<std::uint32_t> ranks_;
  ImportProgress* progress_ = nullptr;
};

// As the word that the user may give before the path.
Result<std::string> WordFor(const std::string& path) {
  if (HoldsSpills(path)) return std::string("spill");
  const auto format = formats::RecogniseDump(path);
  return format.ok() ? Result<std::string>(std::string(formats::Name(*format))) : format.status();
}

}  // namespace

int Import(Session& session, const ImportOptions& given) {
  ImportOptions options = given;
  if (options.path.empty()) {
    const bool word = options.format == "spill" || formats::ParseDumpFormat(options.format);
    if (word && !formats::IsFolder(options.format).ok())
      return UsageError("import " + options.format + ": the path of the dump is required");
    options.path = std::exchange(options.format, {});
    const auto format = WordFor(options.path);
    if (!format.ok())
      return session.Fail("import " + Printable(options.path, 1000), format.status());
    options.format = *format;
  }
  if (options.format == "spill") return ImportSpill(session, options);
  if (!formats::ParseDumpFormat(options.format))
    return UsageError("import: found two paths, '" + Printable(options.format) + "' and '" +
                      Printable(options.path) + "'; expected one, or a format and a path");
  if (options.run.empty())
    return UsageError("import " + Printable(options.format) +
                      ": --run is missing; expected a name for the new run");
  return Importer(session, options).Run();
}

}  // namespace statcollect::client
