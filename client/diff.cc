#include <cstdio>

#include <fmt/format.h>

#include "client/commands.h"
#include "client/flatten.h"
#include "client/selection.h"
#include "common/names.h"

namespace statcollect::client {
namespace {

// "comparing [=====>    ] 40 %" on standard error, rewritten in place, erased at the end.
class ProgressBar {
 public:
  explicit ProgressBar(bool shown) : shown_(shown) {}
  ~ProgressBar() {
    if (drawn_) std::fputs("\r\x1b[K", stderr);
  }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void Draw(const v1::Progress& progress) {
    if (!shown_ || progress.total() == 0) return;
    constexpr std::size_t kWidth = 40;
    const double share = static_cast<double>(progress.done()) / static_cast<double>(progress.total());
    const std::string filled(std::min(static_cast<std::size_t>(share * kWidth), kWidth), '=');
    std::fputs(fmt::format("\rcomparing [{:<{}}] {:3.0f} %", filled, kWidth, share * 100).c_str(), stderr);
    drawn_ = true;
  }

 private:
  const bool shown_;
  bool drawn_ = false;
};

Status MakeRequest(const DiffOptions& options, v1::DiffRequest& request) {
  for (const std::string* run : {&options.run_a, &options.run_b})
    STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(*run));
  request.set_run_a(options.run_a);
  request.set_run_b(options.run_b);
  if (options.tolerance) request.set_tolerance(*options.tolerance);
  request.set_exact(options.exact);
  request.set_all(options.all);
  request.set_top(options.top);
  STATCOLLECT_RETURN_IF_ERROR(Select(options.ranks, options.steps, request));
  const auto kinds = ParseKinds(options.kinds);
  if (!kinds.ok()) return {kinds.status().code(), "--kinds: " + kinds.status().message()};
  for (const v1::Kind kind : *kinds) request.add_kinds(kind);
  return Status::Ok();
}

Result<v1::DiffReport> Ask(Session& session, const v1::DiffRequest& request) {
  ProgressBar bar(session.terminal().err && !session.options().quiet);
  return session.collector().Diff(request, [&](const v1::Progress& progress) { bar.Draw(progress); });
}

void Print(Session& session, const v1::DiffReport& report) {
  switch (session.options().format) {
    case Format::kJson:
      return session.PrintJson(report);
    case Format::kCsv:
      return session.PrintCsv(FlattenRecords(report.diverged(), kIdentityColumns));
    default:
      return session.PrintPage(session.options().quiet ? RenderVerdict(report) : RenderDiff(report));
  }
}

int ExitCode(v1::Verdict verdict) {
  switch (verdict) {
    case v1::VERDICT_IDENTICAL:
    case v1::VERDICT_WITHIN_TOLERANCE:
      return kExitSame;
    case v1::VERDICT_DIVERGED:
      return kExitDiverged;
    default:
      return kExitNoAnswer;
  }
}

}  // namespace

int Diff(Session& session, const DiffOptions& options) {
  const std::string attempted = "diff " + Printable(options.run_a) + " " + Printable(options.run_b);
  v1::DiffRequest request;
  if (const Status wrong = MakeRequest(options, request); !wrong.ok()) return session.Fail(attempted, wrong);
  const auto report = Ask(session, request);
  if (!report.ok()) return session.Fail(attempted, report.status());
  Print(session, *report);
  return ExitCode(report->verdict());
}

}  // namespace statcollect::client
