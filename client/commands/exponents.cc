#include <algorithm>
#include <tuple>

#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/commands/elsewhere.h"
#include "client/commands/selection.h"
#include "client/render/flatten.h"
#include "common/choice.h"
#include "common/names.h"
#include "common/records.h"
#include "proto/json.h"
#include "proto/text/divergence_text.h"

namespace statcollect::client {
namespace {

constexpr int kBarColumns = 40;
constexpr int kBarsMax = 36;      // lines of a histogram; more exponents than that share lines
constexpr int kTensorsShown = 6;  // histograms on a page
constexpr int kStepsShown = 30;   // of a tensor: the last ones

std::string NameText(const v1::ExponentRow& row) {
  std::string name = row.activation();
  if (!row.output_path().empty() && row.output_path() != "0") name += "[" + row.output_path() + "]";
  if (row.micro_batch() > 0) name += fmt::format(" micro-batch {}", row.micro_batch());
  if (row.call() > 0) name += fmt::format(" call {}", row.call());
  if (row.mode() != "train") name += " " + row.mode();
  return name;
}

std::string KindText(const v1::ExponentRow& row) {
  return EnumText(*v1::Kind_descriptor(), row.kind());
}

std::string Percent(std::uint64_t part, std::uint64_t whole) {
  if (part == 0 || whole == 0) return "-";
  const double percent = 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  return percent < 0.01 ? "<0.01 %" : fmt::format("{:.2f} %", percent);
}

std::string LostPercent(const v1::FormatLoss& loss, std::uint64_t whole) {
  return Percent(loss.to_zero() + loss.overflow(), whole);
}

// "2^-24", or "2^-24 .. 2^-22"; the first and last bin include everything beyond.
std::string ExponentText(int first, int last) {
  const std::string end = last == kExponentHighest ? " and above" : "";
  if (first == kExponentLowest) return fmt::format("2^{} and below", last);
  if (first == last || !end.empty()) return fmt::format("2^{}", first) + end;
  return fmt::format("2^{} .. 2^{}", first, last);
}

// A line for each exponent, or for several next to each other.
std::string Histogram(const v1::ExponentRow& row) {
  const int group = (row.counts_size() + kBarsMax - 1) / kBarsMax;
  std::vector<std::uint64_t> sums;
  for (int i = 0; i < row.counts_size(); ++i) {
    if (i % group == 0) sums.push_back(0);
    sums.back() += row.counts(i);
  }
  const std::uint64_t most = *std::max_element(sums.begin(), sums.end());
  std::string text;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const int first = row.lowest() + static_cast<int>(i) * group;
    const int last = std::min(first + group - 1, row.lowest() + row.counts_size() - 1);
    const auto bar = static_cast<int>(
        static_cast<double>(sums[i]) / static_cast<double>(most) * kBarColumns + 0.5);
    std::string line = fmt::format("{:>18} |", ExponentText(first, last));
    for (int cell = 0; cell < std::max(bar, sums[i] > 0 ? 1 : 0); ++cell) line += "█";
    if (sums[i] > 0) line += " " + Percent(sums[i], row.components());
    text += line + "\n";
  }
  return text;
}

Table FormatTable(const v1::ExponentRow& row) {
  Table table({{"format"},
               {"would be 0", Align::kRight},
               {"subnormal", Align::kRight},
               {"overflow", Align::kRight},
               {"lost", Align::kRight}});
  for (const v1::FormatLoss& loss : row.formats()) {
    table.AddRow({loss.dtype(), Percent(loss.to_zero(), row.components()),
                  Percent(loss.subnormal(), row.components()),
                  Percent(loss.overflow(), row.components()), LostPercent(loss, row.components())});
  }
  return table;
}

using ExponentRows = std::vector<const v1::ExponentRow*>;  // of one tensor and rank, by step

Table StepTable(const ExponentRows& rows) {
  std::vector<Column> columns = {{"step", Align::kRight}, {"not 0", Align::kRight}};
  for (const v1::FormatLoss& loss : rows.front()->formats())
    columns.push_back({"lost in " + loss.dtype(), Align::kRight});
  Table table(std::move(columns));
  const std::size_t first = rows.size() > kStepsShown ? rows.size() - kStepsShown : 0;
  for (std::size_t i = first; i < rows.size(); ++i) {
    const v1::ExponentRow& row = *rows[i];
    std::vector<std::string> cells = {std::to_string(row.step()), FormatCount(row.components())};
    for (const v1::FormatLoss& loss : row.formats())
      cells.push_back(LostPercent(loss, row.components()));
    table.AddRow(std::move(cells));
  }
  return table;
}

// The tensor's newest histogram, and how it came to that.
void AddTensor(const ExponentRows& rows, Page* page) {
  const v1::ExponentRow& row = *rows.back();
  page->AddHeading(fmt::format("{} ({}), rank {}, step {}: {}", Printable(NameText(row)),
                               KindText(row), row.rank(), row.step(),
                               row.dtype() + " " + ShapeText(row.shape())));
  if (row.components() == 0) {
    page->AddSentence("No element is both finite and nonzero.");
  } else {
    page->AddPlot(Histogram(row));
    page->AddTable(FormatTable(row));
  }
  if (rows.size() == 1) return;
  page->AddTable(StepTable(rows));
  if (rows.size() > kStepsShown) {
    page->AddSentence(fmt::format(
        "These are the last {} of {} steps; --steps selects others, --format csv prints all.",
        kStepsShown, FormatCount(rows.size())));
  }
}

Page TensorPage(const v1::ListExponentsResponse& response) {
  const auto place = [](const v1::ExponentRow& r) {
    return std::tuple(r.kind(), r.output_path(), r.micro_batch(), r.call(), r.mode(), r.rank());
  };
  std::vector<ExponentRows> tensors;
  for (const v1::ExponentRow& row : response.records()) {
    if (tensors.empty() || place(*tensors.back().back()) != place(row)) tensors.emplace_back();
    tensors.back().push_back(&row);
  }
  Page page;
  for (std::size_t i = 0; i < tensors.size() && i < kTensorsShown; ++i)
    AddTensor(tensors[i], &page);
  if (tensors.size() > kTensorsShown) {
    page.AddSentence(
        fmt::format("These are {} of {} tensors of that name; --kinds and --rank select others.",
                    kTensorsShown, FormatCount(tensors.size())));
  }
  return page;
}

Page SummaryPage(const std::string& run, const v1::ListExponentsResponse& response,
                 std::uint32_t top) {
  const v1::ExponentRow& worst = response.records(0);
  const std::string format = worst.formats(0).dtype();
  const auto losing =
      std::count_if(response.records().begin(), response.records().end(),
                    [](const v1::ExponentRow& row) { return row.has_since_step(); });
  Page page;
  page.AddSentence(fmt::format(
      "{} of {} tensors of {} have a step in which {} would lose 1 % or more of the nonzero "
      "elements.",
      losing, FormatCount(static_cast<std::uint64_t>(response.records_size())), Printable(run),
      format));
  Table table({{"lost", Align::kRight},
               {"would be 0", Align::kRight},
               {"overflow", Align::kRight, false, Use::kIfItFits},
               {"subnormal", Align::kRight, false, Use::kIfItFits},
               {"step", Align::kRight},
               {"since", Align::kRight, false, Use::kIfItFits},
               {"steps", Align::kRight, false, Use::kIfItFits},
               {"rank", Align::kRight, false, Use::kIfItVaries},
               {"kind", Align::kLeft, false, Use::kIfItVaries},
               {"activation", Align::kLeft, true},
               {"dtype", Align::kLeft, false, Use::kIfItVaries}});
  for (int i = 0; i < response.records_size() && static_cast<std::uint32_t>(i) < top; ++i) {
    const v1::ExponentRow& row = response.records(i);
    const v1::FormatLoss& loss = row.formats(0);
    table.AddRow({LostPercent(loss, row.components()), Percent(loss.to_zero(), row.components()),
                  Percent(loss.overflow(), row.components()),
                  Percent(loss.subnormal(), row.components()), std::to_string(row.step()),
                  row.has_since_step() ? std::to_string(row.since_step()) : "-",
                  FormatCount(row.steps()), std::to_string(row.rank()), KindText(row),
                  NameText(row), row.dtype()});
  }
  page.AddHeading("What " + format + " would lose, in each tensor's worst step");
  page.AddTable(std::move(table));
  if (static_cast<std::uint32_t>(response.records_size()) > top)
    page.AddSentence(fmt::format("The first {}; --top shows more.", top));
  page.AddSentence(fmt::format("statctl tensor {} NAME --exponents shows the histogram of one.",
                               Printable(run)));
  return page;
}

Status MakeRequest(const ExponentsOptions& options, v1::ListExponentsRequest& request) {
  request.set_run(options.run);
  request.set_activation(options.activation);
  STATCOLLECT_RETURN_IF_ERROR(Select(options.ranks, options.steps, request));
  STATCOLLECT_RETURN_IF_ERROR(SelectKinds(options.kinds, request));
  const auto format = ParseNarrowFormat(options.dtype);
  if (!format.ok()) return format.status();
  request.set_format(*format);
  if (!options.activation.empty()) return Status::Ok();
  request.set_summary(true);
  if (*format == v1::DTYPE_UNSPECIFIED) request.set_format(v1::DTYPE_F16);
  return Status::Ok();
}

}  // namespace

Result<v1::DType> ParseNarrowFormat(const std::string& text) {
  if (text.empty()) return v1::DTYPE_UNSPECIFIED;
  for (const v1::DType dtype :
       {v1::DTYPE_F16, v1::DTYPE_BF16, v1::DTYPE_F8E4M3, v1::DTYPE_F8E5M2}) {
    const std::string name = EnumText(*v1::DType_descriptor(), dtype);
    if (text == name || "f8" + text == name) return dtype;
  }
  return Status(Code::kInvalidArgument, NotOneOf(text, {"f16", "bf16", "e4m3", "e5m2"}));
}

int Exponents(Session& session, const ExponentsOptions& options) {
  const std::string attempted = "exponents " + Printable(options.run);
  v1::ListExponentsRequest request;
  if (const Status wrong = MakeRequest(options, request); !wrong.ok())
    return session.Fail(attempted, wrong);
  const auto response = session.collector().ListExponents(request);
  if (!response.ok()) return session.Fail(attempted, response.status());
  session.Print(
      *response, [&] { return FlattenRecords(response->records()); },
      [&] {
        if (!response->records().empty())
          return request.summary() ? SummaryPage(options.run, *response, options.top)
                                   : TensorPage(*response);
        Page page;
        const auto ask = [&](v1::ListExponentsRequest all) {
          all.set_summary(false);  // each step that has some
          return session.collector().ListExponents(all);
        };
        page.AddSentence(NothingSelected(
            "histograms of exponents", request, ask,
            "STATAGENT_EXPONENTS='*@0-,every=100' or init(exponents=...) records them."));
        return page;
      });
  return kExitSame;
}

}  // namespace statcollect::client
