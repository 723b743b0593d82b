#include "client/render/plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>

#include <fmt/format.h>

namespace statcollect::client {
namespace {

constexpr std::string_view kMarks = "*+ox#@";
// Characters by the filled half of a cell: none, upper, lower, both.
constexpr std::array<std::string_view, 4> kBlocks = {" ", "\u2580", "\u2584", "\u2588"};

struct Range {
  double low = std::numeric_limits<double>::infinity(),
         high = -std::numeric_limits<double>::infinity();
  void Add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  // The index, below `cells`, of the cell of a value in the range; the middle one if the range is a
  // single value.
  std::size_t Cell(double value, std::size_t cells) const {
    if (!(high > low)) return cells / 2;
    const double share =
        value / 2 / (high / 2 - low / 2) - low / 2 / (high / 2 - low / 2);  // halves: no overflow
    const double cell = std::clamp(share, 0.0, 1.0) * static_cast<double>(cells - 1) + 0.5;
    return std::min(cells - 1, static_cast<std::size_t>(cell));
  }
};

struct Extent {
  Range x, y;
  std::size_t points = 0;
};

Extent Measure(const std::vector<PlotLine>& lines) {
  Extent extent;
  for (const PlotLine& line : lines) {
    for (const auto& [step, value] : line.points) {
      if (!std::isfinite(value)) continue;
      extent.x.Add(step);
      extent.y.Add(value);
      ++extent.points;
    }
  }
  return extent;
}

// Index of the line last drawn at each place, plus one; rows from the top.
using Grid = std::vector<std::vector<std::size_t>>;

Grid Draw(const std::vector<PlotLine>& lines, const Extent& extent, std::size_t columns,
          std::size_t rows) {
  Grid grid(rows, std::vector<std::size_t>(columns));
  for (std::size_t i = 0; i < lines.size(); ++i) {
    for (const auto& [step, value] : lines[i].points) {
      if (std::isfinite(value))
        grid[rows - 1 - extent.y.Cell(value, rows)][extent.x.Cell(step, columns)] = i + 1;
    }
  }
  return grid;
}

void CutBlanks(std::string& text) { text.erase(text.find_last_not_of(' ') + 1); }

// Rows of text: of blocks from a grid of twice as many rows, or of marks.
std::vector<std::string> BlockRows(const Grid& grid) {
  std::vector<std::string> text(grid.size() / 2);
  for (std::size_t row = 0; row < text.size(); ++row) {
    for (std::size_t column = 0; column < grid[0].size(); ++column) {
      const std::size_t halves =
          (grid[2 * row][column] > 0 ? 1 : 0) + (grid[2 * row + 1][column] > 0 ? 2 : 0);
      text[row] += kBlocks[halves];
    }
    CutBlanks(text[row]);
  }
  return text;
}

std::vector<std::string> Marks(const Grid& grid) {
  std::vector<std::string> text(grid.size());
  for (std::size_t row = 0; row < grid.size(); ++row) {
    for (const std::size_t line : grid[row])
      text[row] += line == 0 ? ' ' : kMarks[(line - 1) % kMarks.size()];
    CutBlanks(text[row]);
  }
  return text;
}

}  // namespace

std::string Plot(const std::vector<PlotLine>& given, Axis axis, std::size_t columns,
                 std::size_t rows) {
  std::vector<PlotLine> lines = given;
  const bool is_log = axis == Axis::kLogarithmic;
  for (PlotLine& line : lines) {
    if (!is_log) break;
    for (auto& [step, value] : line.points) value = std::log10(value);  // of 0: not finite
  }
  const auto value_of = [&](double y) { return is_log ? std::pow(10.0, y) : y; };
  const Extent extent = Measure(lines);
  if (extent.points < 2) return {};
  const bool one = lines.size() == 1;
  const auto cells = one ? BlockRows(Draw(lines, extent, columns, rows * 2))
                         : Marks(Draw(lines, extent, columns, rows));
  std::string text;
  for (std::size_t row = 0; row < rows; ++row) {
    std::string label;
    if (row == 0) label = fmt::format("{:.4g}", value_of(extent.y.high));
    if (row + 1 == rows) label = fmt::format("{:.4g}", value_of(extent.y.low));
    text += fmt::format("{:>11} |{}\n", label, cells[row]);
  }
  text += fmt::format("{:>11} +{}\n", "", std::string(columns, '-'));
  const std::string first = fmt::format("step {:.0f}", extent.x.low),
                    last = fmt::format("{:.0f}", extent.x.high);
  const std::size_t gap =
      columns > first.size() + last.size() ? columns - first.size() - last.size() : 2;
  text += fmt::format("{:>13}{}{}{}\n", "", first, std::string(gap, ' '), last);
  for (std::size_t i = 0; i < lines.size() && !one; ++i) {
    text += fmt::format("{:>13}{} {}\n", "", kMarks[i % kMarks.size()], lines[i].label);
  }
  return text;
}

}  // namespace statcollect::client
