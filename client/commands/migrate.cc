// statctl move migrate: copies runs from one collector to another, and checks that both hold the
// same.
#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/commands/glob.h"
#include "client/imports/run_copier.h"
#include "client/render/progress_bar.h"
#include "common/names.h"
#include "common/project.h"
#include "proto/json.h"

namespace statcollect::client {
namespace {

constexpr std::chrono::milliseconds kCopyPatience{60'000};

// What became of one run.
struct Migrated {
  std::string run;
  std::size_t launches = 0, ranks = 0;
  std::uint64_t records = 0;
  std::string
      result;  // "copied", "already there", "would copy", or why it is not the same on both sides
  bool same = false;
  std::vector<std::string> differences;
};

std::string CountOf(std::size_t n, const char* what) {
  return fmt::format("{} {}{}", FormatCount(n), what, n == 1 ? "" : "s");
}

class Migration {
 public:
  Migration(Session& session, const MigrateOptions& options)
      : session_(session), options_(options) {}

  int Run() {
    const Status ready = Prepare();
    if (!ready.ok()) return session_.Fail(Attempted(), ready);
    const auto cancel = session_.collector().OnCancel([this] {
      source_->Cancel();
      target_->Cancel();
    });
    const Collector::Task source_task(*source_), target_task(*target_);
    const auto runs = Wanted();
    if (!runs.ok()) return session_.Fail(Attempted(), runs.status());
    std::vector<Migrated> all;
    for (const std::string& run : *runs) {
      all.push_back({.run = run});
      const Status status = MigrateOne(all.back());
      if (status.ok()) continue;
      if (!IsAboutTheRun(status)) {
        const std::string before = fmt::format("; runs before it: {}", all.size() - 1);
        return session_.Fail(Attempted() + ", run '" + Printable(run) + "'",
                             {status.code(), status.message() + (all.size() > 1 ? before : "")});
      }
      all.back().result = status.message();
    }
    return Report(all);
  }

 private:
  std::string Attempted() const {
    return fmt::format("migrate from {} to {}", Printable(session_.collector().address()),
                       Printable(options_.to));
  }

  // The other runs can still be copied.
  static bool IsAboutTheRun(const Status& status) {
    return status.code() == Code::kAlreadyExists || status.code() == Code::kFailedPrecondition ||
           status.code() == Code::kNotFound || status.code() == Code::kDataLoss ||
           status.code() == Code::kInvalidArgument || status.code() == Code::kAborted;
  }

  Status Prepare() {
    STATCOLLECT_RETURN_IF_ERROR(ValidateAddress(options_.to, "--to"));
    if (!options_.to_project.empty())
      STATCOLLECT_RETURN_IF_ERROR(ValidateProjectName(options_.to_project));
    auto tls = LoadTls(
        {.certificate = options_.to_tls_cert,
         .key = options_.to_tls_key,
         .authorities = options_.to_tls_ca},
        {.certificate = "--to-tls-cert", .key = "--to-tls-key", .authorities = "--to-tls-ca"});
    if (!tls.ok()) return tls.status();
    STATCOLLECT_RETURN_IF_ERROR(session_.collector().Locate());
    const Collector& from = session_.collector();
    // Without a time limit: copying takes as long as it does.
    source_ = std::make_unique<Collector>(CollectorOptions{.address = from.address(),
                                                           .token_file = from.token_file(),
                                                           .project = from.project(),
                                                           .tls = from.tls()});
    target_ = std::make_unique<Collector>(CollectorOptions{.address = options_.to,
                                                           .token_file = options_.to_token_file,
                                                           .project = options_.to_project,
                                                           .tls = *std::move(tls)});
    return CheckStores();
  }

  Status CheckStores() {
    const auto source = source_->DescribeStore();
    if (!source.ok()) return source.status();
    const auto target = target_->DescribeStore();
    if (!target.ok()) return target.status();
    const bool same = !source->store_id().empty() && source->store_id() == target->store_id() &&
                      source->store_epoch() == target->store_epoch();
    if (!same || source_->project() != target_->project()) return Status::Ok();
    return {Code::kInvalidArgument,
            "both write to the same store, which has the runs already; expected two stores; check "
            "--collector "
            "and --to"};
  }

  // Names of the runs to copy, sorted.
  Result<std::vector<std::string>> Wanted() {
    const auto all = source_->ListRuns();
    if (!all.ok()) return all.status();
    std::vector<std::string> runs;
    for (const v1::RunSummary& run : all->runs()) {
      const auto matches = [&](const std::string& pattern) {
        return MatchesGlob(pattern, run.run());
      };
      if (options_.runs.empty() || std::any_of(options_.runs.begin(), options_.runs.end(), matches))
        runs.push_back(run.run());
    }
    for (const std::string& pattern : options_.runs) {
      if (std::none_of(runs.begin(), runs.end(),
                       [&](const std::string& run) { return MatchesGlob(pattern, run); }))
        return Status(
            Code::kNotFound,
            fmt::format("--run: no run matches '{}'; nothing was copied; statctl runs lists them",
                        Printable(pattern)));
    }
    return runs;
  }

  Status MigrateOne(Migrated& one) {
    const auto outline = Outline(*source_, one.run);
    if (!outline.ok()) return outline.status();
    one.launches = outline->attempts.size();
    one.ranks = outline->ranks.size();
    one.records = outline->records();
    if (outline->streams_open > 0) {
      return {Code::kFailedPrecondition,
              fmt::format("{} still sending; copy it when the training has ended",
                          outline->streams_open == 1
                              ? "a rank is"
                              : CountOf(outline->streams_open, "rank") + " are")};
    }
    auto copied = AtTarget(one.run, *outline);
    if (!copied.ok()) return copied.status();
    one.result = *copied == Copied::kAll ? "already there" : "copied";
    if (options_.dry_run) {
      if (*copied != Copied::kAll)
        one.result = *copied == Copied::kSome ? "would copy the rest" : "would copy";
      one.same = true;
      return Status::Ok();
    }
    if (*copied != Copied::kAll) STATCOLLECT_RETURN_IF_ERROR(CopyOne(one, *outline));
    return CompareOne(one, *outline);
  }

  Result<Copied> AtTarget(const std::string& run, const RunOutline& source) {
    const auto target = Outline(*target_, run);
    if (target.status().code() == Code::kNotFound) return Copied::kNothing;
    if (!target.ok()) return target.status();
    return CompareOutlines(run, source, *target);
  }

  Status CopyOne(const Migrated& one, const RunOutline& outline) {
    ProgressBar bar("copying " + Printable(one.run, 40), Shown());
    return RunCopier(*source_, *target_, Patience(),
                     [&](std::uint64_t records) { bar.Draw(records, one.records, records); })
        .Copy(one.run, outline);
  }

  Status CompareOne(Migrated& one, const RunOutline& outline) {
    ProgressBar bar("comparing " + Printable(one.run, 40), Shown());
    const auto agreement = RunCopier(*source_, *target_, Patience(), [&](std::uint64_t records) {
                             bar.Draw(records, one.records, records);
                           }).Compare(one.run, outline);
    if (!agreement.ok()) return agreement.status();
    one.records = agreement->records;
    one.differences = agreement->differences;
    one.same = one.differences.empty();
    if (!one.same)
      one.result =
          "the two sides differ: " + one.differences.front() +
          "; did the source change meanwhile? remove the copy (statctl rm) and start again";
    return Status::Ok();
  }

  bool Shown() const { return session_.terminal().err && !session_.options().quiet; }
  std::chrono::milliseconds Patience() const {
    const double seconds = session_.options().timeout_seconds;
    return seconds > 0 ? std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000))
                       : kCopyPatience;
  }

  // "3 runs, 8 525 640 records copied; both sides hold the same".
  std::string Verdict(const std::vector<Migrated>& all) const {
    std::size_t same = 0;
    std::uint64_t records = 0;
    for (const Migrated& one : all) {
      same += one.same ? 1 : 0;
      records += one.same ? one.records : 0;
    }
    if (same < all.size()) {
      return fmt::format(
          "{} of {} runs ({} records) {}; the table says why the others are not", same, all.size(),
          FormatCount(records),
          options_.dry_run ? "can be copied" : "are copied and the same on both sides");
    }
    return fmt::format("{}, {} records {}", CountOf(same, "run"), FormatCount(records),
                       options_.dry_run ? "can be copied; nothing was written"
                                        : "copied; both sides hold the same");
  }

  int Report(const std::vector<Migrated>& all) {
    const bool same =
        std::all_of(all.begin(), all.end(), [](const Migrated& one) { return one.same; });
    if (session_.options().format == Format::kJson) {
      PrintJson(all, same);
    } else {
      PrintTable(all, same);
    }
    return same ? kExitSame : kExitDiverged;
  }

  void PrintJson(const std::vector<Migrated>& all, bool same) {
    nlohmann::ordered_json runs = nlohmann::ordered_json::array();
    for (const Migrated& one : all) {
      runs.push_back({{"run", one.run},
                      {"launches", one.launches},
                      {"ranks", one.ranks},
                      {"records", one.records},
                      {"same", one.same},
                      {"result", one.result},
                      {"differences", one.differences}});
    }
    session_.PrintLine(DumpJson(nlohmann::ordered_json{
        {"dry_run", options_.dry_run}, {"same", same}, {"verdict", Verdict(all)}, {"runs", runs}}));
  }

  void PrintTable(const std::vector<Migrated>& all, bool same) {
    Table table({{"run"},
                 {"launches", Align::kRight},
                 {"ranks", Align::kRight},
                 {"records", Align::kRight},
                 {"result", Align::kLeft, true}});
    for (const Migrated& one : all) {
      table.AddRow({one.run, std::to_string(one.launches), std::to_string(one.ranks),
                    FormatCount(one.records), Printable(one.result, 2000)});
    }
    if (session_.options().format == Format::kCsv) return session_.PrintCsv(table);
    Page page;
    if (!all.empty()) page.AddTable(table);
    page.AddSentence(Verdict(all),
                     options_.dry_run ? ""
                     : same           ? "SAME"
                                      : "NOT THE SAME",
                     same ? Tone::kGood : Tone::kBad);
    session_.PrintPage(page);
  }

  Session& session_;
  const MigrateOptions& options_;
  std::unique_ptr<Collector> source_, target_;
};

}  // namespace

int Migrate(Session& session, const MigrateOptions& options) {
  return Migration(session, options).Run();
}

}  // namespace statcollect::client
