#include "client/plot.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include <fmt/format.h>

namespace statcollect::client {
namespace {

constexpr std::string_view kMarks = "*+ox#@";

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -std::numeric_limits<double>::infinity();
  void Add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  // Cell of a value among `cells`.
  std::size_t Cell(double value, std::size_t cells) const {
    if (!(high > low)) return cells / 2;
    const double share = value / (high - low) - low / (high - low);
    return std::min(cells - 1,
                    static_cast<std::size_t>(std::max(0.0, share * static_cast<double>(cells - 1) + 0.5)));
  }
};

}  // namespace

std::string Plot(const std::vector<PlotLine>& lines, std::size_t columns, std::size_t rows) {
  Range x, y;
  std::size_t count = 0;
  for (const PlotLine& line : lines) {
    for (const auto& [step, value] : line.points) {
      if (!std::isfinite(value)) continue;
      x.Add(step);
      y.Add(value);
      ++count;
    }
  }
  if (count < 2) return {};
  std::vector<std::string> grid(rows, std::string(columns, ' '));
  for (std::size_t i = 0; i < lines.size(); ++i) {
    for (const auto& [step, value] : lines[i].points) {
      if (std::isfinite(value))
        grid[rows - 1 - y.Cell(value, rows)][x.Cell(step, columns)] = kMarks[i % kMarks.size()];
    }
  }
  std::string text;
  for (std::size_t row = 0; row < rows; ++row) {
    const bool labelled = row == 0 || row + 1 == rows;
    const std::string label = labelled ? fmt::format("{:.4g}", row == 0 ? y.high : y.low) : "";
    std::string cells = grid[row];
    cells.erase(cells.find_last_not_of(' ') + 1);
    text += fmt::format("{:>11} |{}\n", label, cells);
  }
  text += fmt::format("{:>11} +{}\n", "", std::string(columns, '-'));
  const std::string first = fmt::format("step {:.0f}", x.low), last = fmt::format("{:.0f}", x.high);
  text +=
      fmt::format("{:>13}{}{:>{}}\n", "", first, last, columns > first.size() ? columns - first.size() : 0);
  for (std::size_t i = 0; i < lines.size() && lines.size() > 1; ++i) {
    text += fmt::format("{:>13}{} {}\n", "", kMarks[i % kMarks.size()], lines[i].label);
  }
  return text;
}

}  // namespace statcollect::client
