#include <algorithm>
#include <tuple>

#include "client/commands/commands.h"
#include "client/commands/golden.h"
#include "client/commands/map_file.h"
#include "client/commands/operands.h"
#include "client/commands/page_link.h"
#include "client/commands/python_package.h"
#include "client/commands/selection.h"
#include "client/render/flatten.h"
#include "client/render/progress_bar.h"
#include "common/names.h"
#include "proto/json.h"
#include "proto/text/divergence_text.h"
#include "proto/text/verdict_text.h"

namespace statcollect::client {
namespace {

Status MakeRequest(const DiffOptions& options, v1::DiffRequest& request) {
  for (const std::string* run : {&options.run_a, &options.run_b})
    STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(*run));
  request.set_run_a(options.run_a);
  request.set_run_b(options.run_b);
  if (options.tolerance) request.set_tolerance(*options.tolerance);
  request.set_exact(options.exact);
  request.set_all(options.all);
  request.set_no_alignment(options.no_alignment);
  request.set_first_only(options.first_only);
  request.set_no_noise(options.no_noise);
  request.set_merge_ranks(options.merge_ranks);
  request.set_logical(options.logical);
  request.set_by_rank(options.by_rank);
  for (const std::string& run : SplitCommas(options.noise)) {
    STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(run));
    request.add_noise(run);
  }
  if (!options.map.empty()) {
    auto map = ReadMap(options.map);
    if (!map.ok()) return map.status();
    request.set_map(*std::move(map));
  }
  request.set_top(options.top);
  STATCOLLECT_RETURN_IF_ERROR(Select(options.ranks, options.steps, request));
  STATCOLLECT_RETURN_IF_ERROR(SelectKinds(options.kinds, request));
  return Status::Ok();
}

Result<v1::DiffReport> Ask(Session& session, const v1::DiffRequest& request) {
  ProgressBar bar("comparing", session.terminal().err && !session.options().quiet);
  return session.collector().Diff(
      request, [&](const v1::Progress& progress) { bar.Draw(progress.done(), progress.total()); });
}

// The diverged records and the root, which comes first if it is not one of them. Its confidence is
// the last column.
Table Rows(const v1::DiffReport& report) {
  Flattener flattener(*v1::Divergence::descriptor(), kIdentityColumns, {"root"});
  const v1::Divergence root = RowOf(report.root());
  const auto identity = [](const v1::Divergence& row) {
    return std::tuple(row.step(), row.micro_batch(), row.rank(), row.stage(), row.kind(),
                      row.activation(), row.output_path(), row.call(), row.mode());
  };
  const auto is_root = [&](const v1::Divergence& row) {
    return report.has_root() && identity(row) == identity(root);
  };
  const auto& rows = report.diverged();
  if (report.has_root() && std::none_of(rows.begin(), rows.end(), is_root))
    flattener.Add(root, {report.root().confidence()});
  for (const v1::Divergence& row : rows)
    flattener.Add(row, {is_root(row) ? report.root().confidence() : std::string()});
  return std::move(flattener).Take();
}

void Print(Session& session, const v1::DiffReport& report) {
  session.Print(
      report, [&] { return Rows(report); },
      [&] { return session.options().quiet ? RenderVerdict(report) : RenderDiff(report); });
}

// Writes --junit; returns the exit code, which a file that cannot be written turns into
// kExitNoAnswer.
int Conclude(Session& session, const DiffOptions& options, const JunitCase& of, int code) {
  if (options.junit.empty()) return code;
  const Status written = WriteJunit(options.junit, of);
  return written.ok() ? code
                      : session.Fail("write --junit " + Printable(options.junit, 1000), written);
}

// The verdict of a comparison with a golden, which is printed here, or that of the runs.
GoldenVerdict Judge(Session& session, const DiffOptions& options, const v1::DiffReport& report) {
  if (options.golden.empty()) {
    v1::DiffText text = VerdictText(report);
    return {std::move(*text.mutable_verdict()), std::move(*text.mutable_sentence())};
  }
  GoldenVerdict verdict = JudgeGolden(session, report, options.golden);
  const bool as_text =
      session.options().format == Format::kTable || session.options().format == Format::kMarkdown;
  if (as_text) {
    session.PrintLine(verdict.word + " " + verdict.text);
  } else {
    session.Remark("statctl: " + verdict.word + " " + verdict.text);
  }
  return verdict;
}

// Where the collector's page shows the same; empty: nowhere that lasts, or it cannot be known.
std::string LinkTo(Session& session, const v1::DiffRequest& request) {
  const std::string path = ComparePath(request);
  if (path.empty() || session.collector().passing()) return {};
  const auto status = session.collector().GetStatus();
  if (!status.ok()) return {};
  const std::string origin = PageOrigin(status->http_address(), session.collector().address(),
                                        session.collector().uses_tls());
  return origin.empty() ? origin : origin + path;
}

// The last line for people. An answer needs no page.
void PrintLink(Session& session, const v1::DiffRequest& request) {
  if (session.options().format != Format::kTable || session.options().quiet) return;
  if (session.collector().passing())
    return session.PrintLine(
        fmt::format("\nIn a browser: statctl open {} {}", request.run_a(), request.run_b()));
  const std::string link = LinkTo(session, request);
  if (!link.empty()) session.PrintLine("\nIn a browser: " + link);
}

Status CheckTracker(const std::string& publish) {
  const std::string tracker = publish.substr(0, publish.find(':'));
  if (publish.empty() || tracker == "wandb" || tracker == "mlflow" || tracker == "trackio")
    return Status::Ok();
  return {Code::kInvalidArgument,
          "--publish: found tracker '" + Printable(tracker) +
              "'; expected wandb, mlflow or trackio, or one with its run, such as "
              "wandb:ENTITY/PROJECT/ID"};
}

// Writes the verdict to --publish; returns the exit code, which a failure turns into kExitNoAnswer.
int Publish(Session& session, const DiffOptions& options, const std::string& against,
            const std::string& link, const GoldenVerdict& verdict, int code) {
  const nlohmann::ordered_json given = {
      {"verdict", verdict.word}, {"headline", verdict.text}, {"link", link}};
  const int published = RunPackage(session, {"publish", options.publish, against, options.run_b,
                                             "--verdict=" + DumpJson(given, -1)});
  return published == kExitSame ? code : kExitNoAnswer;
}

}  // namespace

int ExitCodeOf(v1::Verdict verdict) {
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

Result<v1::DiffReport> AskDiff(Session& session, const DiffOptions& options, std::uint32_t columns,
                               std::uint32_t rows) {
  v1::DiffRequest request;
  STATCOLLECT_RETURN_IF_ERROR(MakeRequest(options, request));
  request.set_heat_map_columns(columns);
  request.set_heat_map_rows(rows);
  return Ask(session, request);
}

Result<v1::DiffRequest> DiffRequestOf(const DiffOptions& options) {
  v1::DiffRequest request;
  STATCOLLECT_RETURN_IF_ERROR(MakeRequest(options, request));
  return request;
}

void PrintDiff(Session& session, const v1::DiffRequest& request, const v1::DiffReport& report) {
  Print(session, report);
  PrintLink(session, request);
}

int Diff(Session& session, const DiffOptions& given) {
  if (given.tokens) return CompareTokens(session, given);
  if (given.golden.empty() && IsPath(given.run_a) && IsPath(given.run_b))
    return WithFiles(session, given, Diff);
  DiffOptions options = given;
  if (IsGoldenFile(options.run_a) && options.golden.empty()) options.golden.swap(options.run_a);
  if (!options.golden.empty() && options.run_b.empty()) options.run_b.swap(options.run_a);
  const std::string a = options.golden.empty() ? options.run_a : options.golden;
  const std::string attempted = "diff " + Printable(a) + " " + Printable(options.run_b);
  JunitCase junit{.name = options.run_b + " against " + a};
  const auto fail = [&](const Status& status) {
    junit.error = true;
    junit.verdict = junit.details = status.message();
    return Conclude(session, options, junit, session.Fail(attempted, status));
  };
  if (!options.golden.empty()) {
    if (!options.run_a.empty())
      return fail({Code::kInvalidArgument,
                   "--golden: found run A as well; expected only --run-b, because the file takes "
                   "the place of run A"});
    auto loaded = LoadGolden(session, options.golden);
    if (!loaded.ok()) return fail(loaded.status());
    options.run_a = *std::move(loaded);
  }
  v1::DiffRequest request;
  Status made = CheckTracker(options.publish);
  if (made.ok()) made = MakeRequest(options, request);
  if (!made.ok()) return fail(made);
  const auto report = Ask(session, request);
  if (!report.ok()) return fail(report.status());
  Print(session, *report);
  const int code = ExitCodeOf(report->verdict());
  const GoldenVerdict verdict = Judge(session, options, *report);
  junit.verdict = verdict.word + " " + verdict.text;
  junit.failed = code == kExitDiverged;
  junit.error = code == kExitNoAnswer;
  if (options.golden.empty())
    PrintLink(session, request);  // a golden's verdict stays the last line
  if (code != kExitSame) junit.details = RenderDiff(*report).ToText({});
  const int concluded = Conclude(session, options, junit, code);
  if (options.publish.empty()) return concluded;
  const std::string link = options.golden.empty() ? LinkTo(session, request) : "";
  return Publish(session, options, a, link, verdict, concluded);
}

}  // namespace statcollect::client
