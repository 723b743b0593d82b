#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/render/flatten.h"
#include "common/names.h"
#include "proto/json.h"

namespace statcollect::client {
namespace {

std::string Setting(bool has, const std::string& value) { return has ? value : "(not set)"; }

// One table a category, in the order of the report.
void AddItems(const v1::ConfigReport& report, Page& page) {
  const bool one = report.run_b().empty();
  for (int i = 0; i < report.items_size();) {
    const v1::ConfigCategory category = report.items(i).category();
    std::vector<Column> columns;
    if (!one) columns.push_back({""});
    columns.push_back({"setting", Align::kLeft, true});
    columns.push_back({Printable(report.run_a()), Align::kLeft, true});
    if (!one) columns.push_back({Printable(report.run_b()), Align::kLeft, true});
    Table table(std::move(columns));
    for (; i < report.items_size() && report.items(i).category() == category; ++i) {
      const v1::ConfigItem& item = report.items(i);
      std::vector<std::string> cells;
      if (!one) cells.emplace_back(item.same() ? "" : "[ ]");
      cells.push_back(item.key());
      cells.push_back(Setting(item.has_a(), item.a()));
      if (!one) cells.push_back(Setting(item.has_b(), item.b()));
      table.AddRow(std::move(cells));
    }
    page.AddHeading(EnumText(*v1::ConfigCategory_descriptor(), category));
    page.AddTable(std::move(table));
  }
}

Page Render(const v1::ConfigReport& report, bool quiet) {
  Page page;
  const std::string runs =
      fmt::format("{} and {}", Printable(report.run_a()), Printable(report.run_b()));
  if (report.run_b().empty()) {
    page.AddSentence(fmt::format("{} settings of {}.", FormatCount(report.compared()),
                                 Printable(report.run_a())));
  } else if (report.same()) {
    page.AddSentence(
        fmt::format("{}: {} settings, none differs.", runs, FormatCount(report.compared())), "SAME",
        Tone::kGood);
  } else {
    page.AddSentence(fmt::format("{}: {} of {} settings differ, most likely causes first.", runs,
                                 FormatCount(report.differ()), FormatCount(report.compared())),
                     "DIFFERENT", Tone::kWarn);
  }
  if (quiet) return page;
  AddItems(report, page);
  if (report.notes().empty()) return page;
  std::vector<std::string> notes;
  for (const std::string& note : report.notes()) notes.push_back(Printable(note, 1000));
  page.AddHeading("Remarks");
  page.AddItems(std::move(notes));
  return page;
}

// For a single run, without the columns of the second run.
Table ToCsv(const v1::ConfigReport& report) {
  if (!report.run_b().empty()) return FlattenRecords(report.items());
  Table table({{"category"}, {"key"}, {"a"}});
  for (const v1::ConfigItem& item : report.items())
    table.AddRow(
        {EnumText(*v1::ConfigCategory_descriptor(), item.category()), item.key(), item.a()});
  return table;
}

}  // namespace

int Config(Session& session, const ConfigOptions& options) {
  const std::string attempted = "config " + Printable(options.run_a) +
                                (options.run_b.empty() ? "" : " " + Printable(options.run_b));
  v1::CompareConfigRequest request;
  request.set_run_a(options.run_a);
  request.set_run_b(options.run_b);
  request.set_all(options.all);
  const auto report = session.collector().CompareConfig(request);
  if (!report.ok()) return session.Fail(attempted, report.status());
  session.Print(
      *report, [&] { return ToCsv(*report); },
      [&] { return Render(*report, session.options().quiet); });
  return report->same() ? kExitSame : kExitDiverged;
}

}  // namespace statcollect::client
