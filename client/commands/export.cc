// Writes a run's records in another tool's format.
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/commands/selection.h"
#include "client/exports/exporter.h"
#include "client/exports/records_decoder.h"
#include "client/render/progress_bar.h"
#include "common/names.h"

namespace statcollect::client {
namespace {

Status MakeRequest(const ExportOptions& options, ExportFormat format,
                   v1::ReadRecordsRequest& request) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(options.run));
  request.set_run(options.run);
  STATCOLLECT_RETURN_IF_ERROR(Select(options.ranks, options.steps, request));
  STATCOLLECT_RETURN_IF_ERROR(SelectKinds(options.kinds, request));
  // Formats of tensors alone: without scalars and events.
  const bool with_others = format == ExportFormat::kJson || format == ExportFormat::kTensorBoard;
  for (int kind = 1; options.kinds.empty() && !with_others && kind < kKindCount; ++kind)
    request.add_kinds(static_cast<v1::Kind>(kind));
  request.set_sketches(options.sketches);
  request.set_samples(options.samples || format == ExportFormat::kOrt);
  // The other formats have columns that say where a part lies.
  const bool for_people = format == ExportFormat::kOrt || format == ExportFormat::kTensorBoard;
  request.set_whole(options.whole || (for_people && !options.by_rank && options.ranks.empty()));
  return Status::Ok();
}

// Checks that the options fit the format.
Status Check(const ExportOptions& options, ExportFormat format) {
  const bool text = format == ExportFormat::kCsv || format == ExportFormat::kJson;
  const bool columns = text || format == ExportFormat::kParquet;
  if (options.path == "-" && !text)
    return {Code::kInvalidArgument,
            "'-': only csv and json can go to standard output; give a path"};
  if ((options.sketches || options.samples) && !columns)
    return {Code::kInvalidArgument, "--sketch and --samples are for csv, json and parquet"};
  if (!options.statistics.empty() && format != ExportFormat::kTensorBoard)
    return {Code::kInvalidArgument,
            "--stat is for tensorboard; the other formats have all statistics"};
  return Status::Ok();
}

// Whether the selection has ranks enough for a folder each.
Result<bool> HasSeveralRanks(Session& session, const ExportOptions& options,
                             const v1::ReadRecordsRequest& request) {
  v1::GetRunRequest question;
  question.set_run(options.run);
  const auto run = session.collector().GetRun(question);
  if (!run.ok()) return run.status();
  if (request.ranks_size() > 0) return request.ranks_size() > 1;
  std::set<std::uint32_t> ranks;
  for (const v1::AttemptInfo& attempt : run->attempts()) {
    for (const v1::RankInfo& rank : attempt.ranks()) ranks.insert(rank.rank());
  }
  return ranks.size() > 1;
}

std::string Summary(const RecordsDecoder& decoder, const ExportOptions& options, double seconds) {
  if (decoder.records() == 0)
    return fmt::format("nothing of run {} matches: {} has no records", options.run,
                       Printable(options.path));
  const auto [first, last] = *decoder.steps();
  return fmt::format(
      "exported {} records of run {} ({} rank{}, steps {}..{}) to {} in {:.1f} s, {} records/s",
      FormatCount(decoder.records()), options.run, decoder.ranks().size(),
      decoder.ranks().size() == 1 ? "" : "s", first, last, Printable(options.path), seconds,
      FormatRate(static_cast<double>(decoder.records()) / std::max(seconds, 1e-3)));
}

Status DoExport(Session& session, const ExportOptions& options) {
  const auto format = ParseExportFormat(options.format);
  if (!format) return {Code::kInternal, "no exporter of this format"};
  v1::ReadRecordsRequest request;
  STATCOLLECT_RETURN_IF_ERROR(Check(options, *format));
  STATCOLLECT_RETURN_IF_ERROR(MakeRequest(options, *format, request));
  const auto rank_folders = HasSeveralRanks(session, options, request);
  if (!rank_folders.ok()) return rank_folders.status();
  const Collector::Task task(session.collector());  // an interrupted export removes what it made
  auto exporter = MakeExporter(*format, {.run = options.run,
                                         .path = options.path,
                                         .overwrite = options.overwrite,
                                         .sketches = options.sketches,
                                         .samples = options.samples,
                                         .rank_folders = *rank_folders,
                                         .statistics = SplitCommas(options.statistics)});
  if (!exporter.ok()) return exporter.status();
  RecordsDecoder decoder(**exporter);
  double seconds = 0;
  {
    ProgressBar bar("exporting", session.terminal().err && !session.options().quiet);
    STATCOLLECT_RETURN_IF_ERROR(
        session.collector().ReadRecords(request, [&](const v1::ReadRecordsResponse& message) {
          const Status taken = decoder.Take(message);
          bar.Draw(message.progress().done(), message.progress().total(), decoder.records());
          return taken;
        }));
    STATCOLLECT_RETURN_IF_ERROR((*exporter)->Finish());
    seconds = bar.seconds();
  }
  for (const std::string& remark : (*exporter)->Remarks()) session.Remark(remark);
  session.Remark(Summary(decoder, options, seconds));
  return Status::Ok();
}

}  // namespace

Result<std::vector<std::string>> ParseExportStatistics(const std::string& text) {
  std::vector<std::string> names = SplitCommas(text);
  STATCOLLECT_RETURN_IF_ERROR(CheckTensorBoardStatistics(names));
  return names;
}

int Export(Session& session, const ExportOptions& options) {
  const Status status = DoExport(session, options);
  return status.ok() ? kExitSame : session.Fail("export " + Printable(options.run), status);
}

}  // namespace statcollect::client
