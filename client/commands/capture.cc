// statctl values get: asks a run in training for the raw values of an activation, waits until they
// are there, and saves them.
#include <algorithm>
#include <cctype>
#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "client/commands/captures.h"
#include "client/commands/commands.h"
#include "client/commands/selection.h"
#include "client/exports/output.h"
#include "client/render/flatten.h"
#include "client/render/progress_bar.h"
#include "common/capture_spec.h"
#include "common/names.h"
#include "common/text.h"
#include "proto/json.h"

namespace statcollect::client {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPoll{300};
// How long an agent that has passed the step may take to say a word.
constexpr std::chrono::seconds kOverduePatience{20};

// Letters, digits and a few others: names never become paths otherwise.
std::string FileNamePart(const std::string& name) {
  std::string part;
  for (const char c : name)
    part += std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_' || c == '-'
                ? c
                : '_';
  return part.empty() || part.front() == '.' ? "_" + part : part;
}

std::string FileNameOf(const v1::CaptureRow& row) {
  std::string name =
      FileNamePart(row.activation()) + fmt::format(".step{}.rank{}", row.step(), row.rank());
  if (row.kind() != v1::KIND_OUTPUT) name += "." + EnumText(*v1::Kind_descriptor(), row.kind());
  if (!row.output_path().empty() && row.output_path() != "0")
    name += "." + FileNamePart(row.output_path());
  if (row.micro_batch() > 0) name += fmt::format(".mb{}", row.micro_batch());
  if (row.call() > 0) name += fmt::format(".call{}", row.call());
  if (row.mode() != "train") name += "." + FileNamePart(row.mode());
  return name + ".npy";
}

class Capturer {
 public:
  Capturer(Session& session, const CaptureOptions& options)
      : session_(session), options_(options) {}

  Status Run() {
    auto kind = ParseOneKind(options_.place.kind);
    if (!kind.ok()) return kind.status();
    auto mode = ParseCaptureMode(options_.place.mode);
    if (!mode.ok()) return mode.status();
    auto ranks = ParseRanks(options_.ranks);
    if (!ranks.ok()) return ranks.status();
    kind_ = *kind;
    mode_ = *mode;
    wanted_ = {.activation = options_.place.activation,
               .output_path = options_.place.output_path,
               .micro_batch = options_.place.micro_batch,
               .call = options_.place.call};
    if (kind_ != v1::KIND_UNSPECIFIED) wanted_.kind = static_cast<Kind>(kind_);
    if (mode_ != v1::MODE_UNSPECIFIED) wanted_.mode = static_cast<Mode>(mode_);
    ranks_ = *std::move(ranks);
    STATCOLLECT_RETURN_IF_ERROR(Look(0));
    if (answer_.records().empty()) {
      STATCOLLECT_RETURN_IF_ERROR(Ask());
      if (options_.no_wait) return Status::Ok();
      STATCOLLECT_RETURN_IF_ERROR(Wait());
    }
    for (const v1::CaptureRow& row : answer_.records()) {
      if (!row.complete()) {
        return {Code::kFailedPrecondition,
                CaptureText(row) + ": " + FormatBytes(row.bytes_stored()) + " of " +
                    FormatBytes(row.bytes()) +
                    " have arrived; wait for the rest, or capture it again if the run has ended"};
      }
    }
    if (!options_.out.empty()) STATCOLLECT_RETURN_IF_ERROR(Save());
    Print();
    return missed_.empty() ? Status::Ok() : Status(Code::kOutOfRange, missed_);
  }

 private:
  bool Fits(const v1::CaptureRow& row) const {
    return wanted_.Matches({.name = row.activation(),
                            .kind = static_cast<Kind>(row.kind()),
                            .output_path = row.output_path(),
                            .micro_batch = row.micro_batch(),
                            .call = row.call(),
                            .mode = ParseMode(row.mode()).value_or(Mode::kUnspecified)});
  }

  // Fetches the current captures; if `request` is not 0, only those of this request.
  Status Look(std::uint64_t request) {
    v1::ListCapturesRequest question;
    question.set_run(options_.run);
    question.set_activation(options_.place.activation);
    question.set_steps(std::to_string(options_.place.step));
    question.mutable_ranks()->Add(ranks_.begin(), ranks_.end());
    question.set_request(request);
    auto answer = session_.collector().ListCaptures(question);
    if (!answer.ok()) return answer.status();
    answer_ = *std::move(answer);
    auto* rows = answer_.mutable_records();
    rows->erase(
        std::remove_if(rows->begin(), rows->end(), [&](const auto& row) { return !Fits(row); }),
        rows->end());
    return Status::Ok();
  }

  Status Ask() {
    const CapturePlace& place = options_.place;
    v1::RequestCaptureRequest question;
    question.set_run(options_.run);
    question.set_activation(place.activation);
    question.set_kind(kind_);
    if (place.output_path) question.set_output_path(*place.output_path);
    question.set_micro_batch(place.micro_batch);
    question.set_call(place.call);
    question.set_mode(mode_);
    question.set_step(place.step);
    question.set_bytes_max(options_.bytes_max);
    question.mutable_ranks()->Add(ranks_.begin(), ranks_.end());
    auto asked = session_.collector().RequestCapture(question);
    if (!asked.ok()) return asked.status();
    asked_ = *std::move(asked);
    session_.Remark(fmt::format("asked rank{} {} of run '{}' to capture {} at step {} (request {})",
                                asked_.ranks_size() == 1 ? "" : "s", RanksText(asked_.ranks()),
                                Printable(options_.run), Printable(place.activation), place.step,
                                asked_.request()));
    if (const std::uint32_t told = asked_.told();
        told < static_cast<std::uint32_t>(asked_.ranks_size())) {
      session_.Remark(fmt::format("not connected now, asked when they reconnect: {} of {} ranks",
                                  asked_.ranks_size() - static_cast<int>(told),
                                  asked_.ranks_size()));
    }
    if (options_.no_wait && session_.options().format == Format::kJson) session_.PrintJson(asked_);
    return Status::Ok();
  }

  // Progress of the request's ranks, from the newest answer.
  struct Standing {
    bool settled = true, overdue = false;
    std::uint64_t reached = 0;  // step of the slowest rank, at most the one asked for
  };

  // Notes in missed_ which ranks have not captured it, and why.
  Standing Judge() {
    Standing standing{.reached = options_.place.step};
    missed_.clear();
    for (const v1::CaptureRequestRank& rank : answer_.requests(0).ranks()) {
      const std::string& state = rank.state();
      standing.overdue = standing.overdue || state == "overdue";
      standing.settled = standing.settled && (state == "captured" || state == "missed" ||
                                              state == "ended" || state == "overdue");
      standing.reached = std::min(standing.reached, rank.has_last_step() ? rank.last_step() : 0);
      if (state == "captured") continue;
      missed_ += (missed_.empty() ? "" : "; ") +
                 fmt::format("rank {}: {}", rank.rank(), Printable(rank.why(), 1000));
    }
    return standing;
  }

  Status Wait() {
    const Collector::Task task(session_.collector());
    ProgressBar bar(fmt::format("waiting for step {}", options_.place.step),
                    session_.terminal().err && !session_.options().quiet);
    const auto begin = steady_clock::now();
    auto in_time = begin;  // when no rank was overdue last
    std::optional<std::uint64_t> first_seen;
    for (;;) {
      STATCOLLECT_RETURN_IF_ERROR(Look(asked_.request()));
      if (answer_.requests().empty())
        return {Code::kNotFound,
                "the request no longer exists: the run was removed or started again"};
      const Standing standing = Judge();
      const auto now = steady_clock::now();
      if (!standing.overdue) in_time = now;
      if (standing.settled && (!standing.overdue || now - in_time > kOverduePatience))
        return Status::Ok();
      if (options_.wait_seconds > 0 &&
          std::chrono::duration<double>(now - begin).count() > options_.wait_seconds) {
        return {Code::kDeadlineExceeded,
                fmt::format("not captured after {:g} s: {}; the request remains: run this again, "
                            "or see statctl "
                            "captures {}",
                            options_.wait_seconds, missed_, Printable(options_.run))};
      }
      if (!first_seen) first_seen = standing.reached;
      if (options_.place.step > *first_seen)
        bar.Draw(standing.reached - *first_seen, options_.place.step - *first_seen);
      if (!session_.collector().WaitUnlessCancelled(kPoll))
        return {Code::kCancelled, "interrupted"};
    }
  }

  Status Save() {
    if (answer_.records().empty()) return Status::Ok();  // the caller reports the reason
    std::error_code error;
    const bool folder =
        options_.out.ends_with('/') || std::filesystem::is_directory(options_.out, error);
    if (answer_.records_size() > 1 && !folder) {
      std::string places;
      for (const v1::CaptureRow& row : answer_.records())
        places += (places.empty() ? "" : "; ") + CaptureText(row);
      return {Code::kInvalidArgument, "save to '" + Printable(options_.out) +
                                          "': several tensors were captured; choose one with "
                                          "--rank, --kind or --path, or give a folder "
                                          "for one file each: " +
                                          places};
    }
    if (folder) {
      std::filesystem::create_directories(options_.out, error);
      if (error)
        return {Code::kPermissionDenied,
                "make folder '" + Printable(options_.out) + "': " + error.message()};
    }
    for (const v1::CaptureRow& row : answer_.records()) {
      const std::string path =
          folder ? (std::filesystem::path(options_.out) / FileNameOf(row)).string() : options_.out;
      STATCOLLECT_RETURN_IF_ERROR(SaveOne(row, path));
    }
    return Status::Ok();
  }

  Status SaveOne(const v1::CaptureRow& row, const std::string& path) {
    CapturePlace place = options_.place;
    place.kind = EnumText(*v1::Kind_descriptor(), row.kind());
    place.output_path = row.output_path();
    const auto values = FetchCapture(session_, options_.run, place, row.rank());
    if (!values.ok()) return values.status();
    auto partial = Partial::File(path, options_.overwrite);
    if (!partial.ok()) return partial.status();
    auto file = FileWriter::Create(partial->path());
    if (!file.ok()) return file.status();
    STATCOLLECT_RETURN_IF_ERROR(file->Write(ToNpy(*values, options_.raw)));
    STATCOLLECT_RETURN_IF_ERROR(file->Close());
    STATCOLLECT_RETURN_IF_ERROR(partial->Commit());
    const bool widened =
        !options_.raw && (values->dtype == DType::kBf16 || values->dtype == DType::kF8E4M3 ||
                          values->dtype == DType::kF8E5M2);
    session_.Remark(fmt::format(
        "saved {} to {}: {} {}{}{}", CaptureText(row), Printable(path), row.dtype(),
        CaptureShapeText(row), widened ? ", as float32, which holds its values exactly" : "",
        values->whole() ? "" : "; the tensor is larger: --max-bytes keeps more"));
    return Status::Ok();
  }

  void Print() {
    if (answer_.records().empty()) return;
    if (!options_.out.empty() && session_.options().format == Format::kTable) return;
    session_.Print(
        answer_, [&] { return FlattenRecords(answer_.records()); },
        [&] {
          Page page;
          page.AddTable(CaptureTable(answer_.records()));
          return page;
        });
  }

  Session& session_;
  const CaptureOptions& options_;
  v1::Kind kind_ = v1::KIND_UNSPECIFIED;
  v1::Mode mode_ = v1::MODE_UNSPECIFIED;
  CaptureSpec wanted_;  // without steps
  std::vector<std::uint32_t> ranks_;
  v1::RequestCaptureResponse asked_;
  v1::ListCapturesResponse answer_;
  std::string missed_;
};

}  // namespace

int CaptureActivation(Session& session, const CaptureOptions& options) {
  const Status done = Capturer(session, options).Run();
  if (done.ok()) return kExitSame;
  return session.Fail(
      "capture " + Printable(options.place.activation) + " of " + Printable(options.run), done);
}

}  // namespace statcollect::client
