// A report for a browser: one file with the verdict, the heat map, the losses and what shows them.
#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "client/commands/commands.h"
#include "client/exports/output.h"
#include "client/render/report_template.h"
#include "common/names.h"
#include "proto/json.h"

namespace statcollect::client {
namespace {

constexpr std::uint32_t kColumns = 1024, kRows = 1024;  // 1 MiB of cells, twice that in the file

// All losses of a run; none if it has too many scalars to list. The report says that it has none.
nlohmann::ordered_json LossesOf(Session& session, const DiffOptions& diff, const std::string& run) {
  v1::ListScalarsRequest request;
  request.set_run(run);
  request.set_steps(diff.steps);
  nlohmann::ordered_json losses = nlohmann::ordered_json::array();
  const auto scalars = session.collector().ListScalars(request);
  if (!scalars.ok()) {
    session.Remark("no losses of " + Printable(run) + ": " + scalars.status().message());
    return losses;
  }
  for (const v1::ScalarRow& row : scalars->records()) {
    std::string name = row.name();
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    if (name.ends_with("loss")) losses.push_back(ToJson(row));
  }
  return losses;
}

// The command that asks the same, as far as the report is about it.
std::vector<std::string> CommandOf(const DiffOptions& diff) {
  std::vector<std::string> words = {"statctl", "diff", diff.run_a, diff.run_b};
  const auto add = [&](const char* option, const std::string& value) {
    if (!value.empty()) words.insert(words.end(), {option, value});
  };
  if (diff.exact) words.emplace_back("--exact");
  if (diff.tolerance) add("--tolerance", nlohmann::json(*diff.tolerance).dump());
  add("--rank", diff.ranks);
  add("--steps", diff.steps);
  add("--kinds", diff.kinds);
  add("--map", diff.map);
  add("--noise", diff.noise);
  for (const auto& [given, option] : {std::pair(diff.no_noise, "--no-noise"),
                                      {diff.no_alignment, "--no-alignment"},
                                      {diff.first_only, "--first"},
                                      {diff.merge_ranks, "--merge-ranks"},
                                      {diff.logical, "--logical"},
                                      {diff.by_rank, "--by-rank"}}) {
    if (given) words.emplace_back(option);
  }
  return words;
}

// In a script element '<' could end it.
std::string WithoutTags(const std::string& json) {
  std::string safe;
  safe.reserve(json.size());
  for (const char c : json) {
    if (c == '<') {
      safe += "\\u003c";
    } else {
      safe += c;
    }
  }
  return safe;
}

std::string FileOf(Session& session, const DiffOptions& diff, const v1::DiffReport& report) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  nlohmann::ordered_json data;
  data["report"] = ToJson(report);
  data["scalars_a"] = LossesOf(session, diff, diff.run_a);
  data["scalars_b"] = LossesOf(session, diff, diff.run_b);
  data["command"] = CommandOf(diff);
  data["made_unix_nanos"] = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  std::string file(ReportTemplate());
  const std::size_t place = file.find(kReportData);
  file.replace(place, kReportData.size(), WithoutTags(DumpJson(data, -1)));
  return file;
}

Status WriteReport(Session& session, const ReportOptions& options, const v1::DiffReport& report,
                   Partial& partial) {
  auto file = FileWriter::Create(partial.path());
  if (!file.ok()) return file.status();
  STATCOLLECT_RETURN_IF_ERROR(file->Write(FileOf(session, options.diff, report)));
  STATCOLLECT_RETURN_IF_ERROR(file->Close());
  return partial.Commit();
}

}  // namespace

int Report(Session& session, const ReportOptions& options) {
  const std::string attempted =
      "report " + Printable(options.diff.run_a) + " " + Printable(options.diff.run_b);
  auto partial = Partial::File(options.out, options.overwrite);  // before the work
  if (!partial.ok()) return session.Fail(attempted, partial.status());
  const auto report = AskDiff(session, options.diff, kColumns, kRows);
  if (!report.ok()) return session.Fail(attempted, report.status());
  const Status written = WriteReport(session, options, *report, *partial);
  if (!written.ok()) return session.Fail(attempted, written);
  session.PrintPage(RenderVerdict(*report));
  session.Remark("wrote " + options.out + "; open it in a browser");
  return ExitCodeOf(report->verdict());
}

}  // namespace statcollect::client
