#include <algorithm>

#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/commands/selection.h"
#include "client/render/flatten.h"
#include "common/choice.h"
#include "common/names.h"
#include "common/text.h"
#include "proto/json.h"
#include "proto/text/divergence_text.h"

namespace statcollect::client {
namespace {

std::string ValueText(v1::TopBy by, double value) {
  const bool count = by == v1::TOP_BY_NAN || by == v1::TOP_BY_INF || by == v1::TOP_BY_NUMEL;
  return count ? FormatCount(static_cast<std::uint64_t>(value)) : FormatNumber(value);
}

template <typename T>
std::optional<double> NumberIf(bool has, T value) {
  return has ? std::optional<double>(value) : std::nullopt;
}

// Columns without information in this answer are left out.
class RowsTable {
 public:
  explicit RowsTable(const v1::GetTopResponse& response) : response_(response) {
    for (const v1::TopRow& row : response.records()) {
      micro_batches_ = micro_batches_ || row.micro_batch() > 0;
      calls_ = calls_ || row.call() > 0;
      modes_ = modes_ || row.mode() != "train";
      nonfinite_ =
          nonfinite_ || row.stats().nan() + row.stats().pos_inf() + row.stats().neg_inf() > 0;
    }
  }
  Table Make() const {
    std::vector<Column> columns = {
        {EnumText(*v1::TopBy_descriptor(), response_.by()), Align::kRight},
        {"rank", Align::kRight, false, Use::kIfItVaries},
        {"kind", Align::kLeft, false, Use::kIfItVaries},
        {"activation", Align::kLeft, true},
        {"class", Align::kLeft, false, Use::kIfItVaries}};
    if (micro_batches_) columns.push_back({"mb", Align::kRight, false, Use::kIfItVaries});
    if (calls_) columns.push_back({"call", Align::kRight, false, Use::kIfItVaries});
    if (modes_) columns.push_back({"mode", Align::kLeft, false, Use::kIfItVaries});
    columns.push_back({"dtype", Align::kRight, false, Use::kIfItVaries});
    columns.push_back({"shape", Align::kRight, false, Use::kIfItFits});
    for (const auto& [name, value] : Others({}))
      columns.push_back({std::string(name), Align::kRight, false, Use::kIfItFits});
    if (nonfinite_) columns.insert(columns.end(), {{"nan", Align::kRight}, {"inf", Align::kRight}});
    Table table(std::move(columns));
    for (const v1::TopRow& row : response_.records()) table.AddRow(Cells(row));
    return table;
  }

 private:
  // The statistics beside the one that the rows are ordered by, which has the first column.
  std::vector<std::pair<std::string_view, std::optional<double>>> Others(
      const v1::ObservationSide& s) const {
    std::vector<std::pair<std::string_view, std::optional<double>>> others = {
        {"min", NumberIf(s.has_min(), s.min())},
        {"max", NumberIf(s.has_max(), s.max())},
        {"mean", NumberIf(s.has_mean(), s.mean())},
        {"std", NumberIf(s.has_std(), s.std())},
        {"l2", NumberIf(s.has_l2(), s.l2())}};
    std::erase_if(others, [by = EnumText(*v1::TopBy_descriptor(), response_.by())](
                              const auto& other) { return other.first == by; });
    return others;
  }
  std::vector<std::string> Cells(const v1::TopRow& row) const {
    std::string name = row.activation();
    if (!row.output_path().empty() && row.output_path() != "0")
      name += "[" + row.output_path() + "]";
    std::vector<std::string> cells = {
        ValueText(response_.by(), row.value()),
        row.ranks_size() > 0 ? RanksText(row.ranks()) : std::to_string(row.rank()),
        EnumText(*v1::Kind_descriptor(), row.kind()), name, row.class_name()};
    if (micro_batches_) cells.push_back(std::to_string(row.micro_batch()));
    if (calls_) cells.push_back(std::to_string(row.call()));
    if (modes_) cells.push_back(row.mode());
    const v1::ObservationSide& s = row.stats();
    cells.push_back(s.dtype());
    cells.push_back(ShapeText(s.shape()));
    for (const auto& [name, value] : Others(s)) cells.push_back(FormatNumber(value));
    if (nonfinite_) {
      cells.push_back(FormatCount(s.nan()));
      cells.push_back(FormatCount(s.pos_inf() + s.neg_inf()));
    }
    return cells;
  }

  const v1::GetTopResponse& response_;
  bool micro_batches_ = false, calls_ = false, modes_ = false, nonfinite_ = false;
};

Page Render(const v1::GetTopResponse& response) {
  Page page;
  const std::string by = EnumText(*v1::TopBy_descriptor(), response.by());
  if (response.records().empty()) {
    page.AddSentence(fmt::format("Nothing in step {} of {} has {} to show.", response.step(),
                                 Printable(response.run()), by == "nan" ? "a NaN" : by));
  } else {
    page.AddHeading(fmt::format("Step {} of {}: {} of {} by {}", response.step(),
                                Printable(response.run()),
                                FormatCount(static_cast<std::uint64_t>(response.records_size())),
                                FormatCount(response.considered()), by));
    page.AddTable(RowsTable(response).Make());
  }
  std::vector<std::string> notes;
  for (const std::string& note : response.notes()) notes.push_back(Printable(note, 1000));
  if (!notes.empty()) page.AddItems(std::move(notes));
  return page;
}

Status MakeRequest(const TopOptions& options, v1::GetTopRequest& request) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(options.run));
  request.set_run(options.run);
  const auto by = ParseTopBy(options.by);
  if (!by.ok()) return by.status();
  request.set_by(*by);
  if (options.step) request.set_step(*options.step);
  const auto ranks = ParseRanks(options.ranks);
  if (!ranks.ok()) return ranks.status();
  request.mutable_ranks()->Add(ranks->begin(), ranks->end());
  STATCOLLECT_RETURN_IF_ERROR(SelectKinds(options.kinds, request));
  request.set_count(options.count);
  request.set_by_rank(options.by_rank);
  return Status::Ok();
}

}  // namespace

Result<v1::TopBy> ParseTopBy(const std::string& text) {
  std::vector<std::string> known;
  for (int number = v1::TopBy_MIN + 1; number <= v1::TopBy_MAX; ++number) {
    if (number == v1::TOP_BY_UPDATE_RATIO || number == v1::TOP_BY_EXPONENT_LOSS)
      continue;  // of maps
    known.push_back(EnumText(*v1::TopBy_descriptor(), number));
    if (known.back() == text) return static_cast<v1::TopBy>(number);
  }
  return Status(Code::kInvalidArgument, NotOneOf(text, known));
}

int Top(Session& session, const TopOptions& options) {
  const std::string attempted = "top " + Printable(options.run);
  v1::GetTopRequest request;
  if (const Status wrong = MakeRequest(options, request); !wrong.ok())
    return session.Fail(attempted, wrong);
  const auto response = session.collector().GetTop(request);
  if (!response.ok()) return session.Fail(attempted, response.status());
  session.Print(
      *response, [&] { return FlattenRecords(response->records(), kIdentityColumns); },
      [&] { return Render(*response); });
  return kExitSame;
}

}  // namespace statcollect::client
