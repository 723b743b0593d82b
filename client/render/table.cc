#include "client/render/table.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <numeric>

#include <fmt/format.h>

#include "common/csv.h"
#include "common/names.h"
#include "common/utf8.h"

namespace statcollect::client {
namespace {

constexpr std::size_t kGap = 2;
constexpr std::size_t kShrunkWidthMin = 24;
constexpr std::size_t kCellBytesMax = 4096;
constexpr std::string_view kEllipsis = "..";
constexpr std::string_view kBold = "\x1b[1m";
constexpr std::string_view kPlain = "\x1b[0m";

// One character of valid UTF-8 text.
struct Glyph {
  std::size_t bytes = 1;
  std::size_t columns = 1;
};

bool IsWide(char32_t c) {
  return (c >= 0x1100 && c <= 0x115f) || (c >= 0x2e80 && c <= 0xa4cf) ||
         (c >= 0xac00 && c <= 0xd7a3) || (c >= 0xf900 && c <= 0xfaff) ||
         (c >= 0xfe30 && c <= 0xfe6f) || (c >= 0xff00 && c <= 0xff60) ||
         (c >= 0xffe0 && c <= 0xffe6) || (c >= 0x1f300 && c <= 0x1faff) ||
         (c >= 0x20000 && c <= 0x3fffd);
}

bool IsCombining(char32_t c) {
  return (c >= 0x0300 && c <= 0x036f) || (c >= 0x1ab0 && c <= 0x1aff) ||
         (c >= 0x20d0 && c <= 0x20ff) || (c >= 0xfe00 && c <= 0xfe0f) || c == 0x200b || c == 0x200d;
}

Glyph GlyphAt(std::string_view text, std::size_t i) {
  const auto [c, bytes] = DecodeUtf8(text.substr(i));
  if (bytes <= 1) return {};
  return {bytes, IsCombining(c) ? 0u : IsWide(c) ? 2u : 1u};
}

// The longest beginning that takes at most `width` columns.
std::string_view Head(std::string_view text, std::size_t width) {
  std::size_t used = 0;
  for (std::size_t i = 0; i < text.size();) {
    const Glyph glyph = GlyphAt(text, i);
    if (used + glyph.columns > width) return text.substr(0, i);
    used += glyph.columns;
    i += glyph.bytes;
  }
  return text;
}

// The longest end that takes at most `width` columns.
std::string_view Tail(std::string_view text, std::size_t width) {
  std::size_t columns = DisplayWidth(text);
  std::size_t i = 0;
  while (i < text.size() && columns > width) {
    const Glyph glyph = GlyphAt(text, i);
    columns -= glyph.columns;
    i += glyph.bytes;
  }
  return text.substr(i);
}

std::string Pad(const std::string& cell, std::size_t width, Align align) {
  const std::size_t have = DisplayWidth(cell);
  const std::string blanks(width > have ? width - have : 0, ' ');
  return align == Align::kLeft ? cell + blanks : blanks + cell;
}

void TrimRight(std::string& line) {
  const auto end = line.find_last_not_of(' ');
  line.erase(end == std::string::npos ? 0 : end + 1);
}

std::string CsvLine(const std::vector<std::string>& cells) {
  std::string line;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (i > 0) line += ',';
    AppendCsvField(cells[i], line);
  }
  return line + "\r\n";
}

std::string MarkdownCell(const std::string& cell) {
  std::string escaped;
  for (const char c : Printable(cell, kCellBytesMax)) {
    if (c == '|' || c == '*' || c == '_' || c == '`' || c == '<') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::size_t Total(const std::vector<std::size_t>& widths, const std::vector<std::size_t>& shown,
                  const TextStyle& style) {
  std::size_t total = style.indent;
  for (const std::size_t i : shown) total += widths[i] + (i == shown.front() ? 0 : kGap);
  return total;
}

// Makes the widest columns narrower until the table fits, or none can shrink: then it is wider than
// the terminal, but still a table.
void Shrink(const std::vector<Column>& columns, const std::vector<std::size_t>& shown,
            const TextStyle& style, std::vector<std::size_t>& widths) {
  if (style.width == 0) return;
  for (std::size_t total = Total(widths, shown, style); total > style.width; --total) {
    std::size_t* widest = nullptr;
    for (const std::size_t i : shown) {
      if (!columns[i].shrinks || widths[i] <= kShrunkWidthMin) continue;
      if (widest == nullptr || widths[i] > *widest) widest = &widths[i];
    }
    if (widest == nullptr) return;
    --*widest;
  }
}

}  // namespace

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

void Table::AddRow(std::vector<std::string> cells) {
  assert(cells.size() <= columns_.size());
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

void Table::KeepLast(std::size_t rows) {
  if (rows < rows_.size())
    rows_.erase(rows_.begin(), rows_.end() - static_cast<std::ptrdiff_t>(rows));
}

std::vector<std::size_t> Table::Widths(const Cells& cells) const {
  std::vector<std::size_t> widths(columns_.size());
  for (const auto& row : cells) {
    for (std::size_t i = 0; i < row.size(); ++i)
      widths[i] = std::max(widths[i], DisplayWidth(row[i]));
  }
  return widths;
}

std::string Table::LeaveOutConstant(const Cells& cells, std::vector<std::size_t>& shown) const {
  std::string said;
  const auto is_constant = [&](std::size_t i) {
    return columns_[i].use == Use::kIfItVaries && cells.size() > 1 &&
           std::all_of(cells.begin() + 1, cells.end(),
                       [&](const auto& row) { return row[i] == cells[1][i]; });
  };
  for (const std::size_t i : shown) {
    if (is_constant(i) && !cells[1][i].empty())
      said +=
          fmt::format("{}{} {}", said.empty() ? "" : ", ",
                      columns_[i].title == "mb" ? "micro-batch" : columns_[i].title, cells[1][i]);
  }
  if (std::all_of(shown.begin(), shown.end(), is_constant)) return {};  // a table keeps a column
  std::erase_if(shown, is_constant);
  return said.empty() ? said : "Every row: " + said;
}

std::string Table::LeaveOutWide(const Cells& cells, const TextStyle& style,
                                std::vector<std::size_t>& shown) const {
  if (style.width == 0) return {};
  const std::vector<std::size_t> widths = Widths(cells);
  std::string said;
  while (Total(widths, shown, style) > style.width) {
    const auto last = std::find_if(shown.rbegin(), shown.rend(), [&](std::size_t i) {
      return columns_[i].use == Use::kIfItFits;
    });
    if (last == shown.rend()) break;
    said = columns_[*last].title + (said.empty() ? "" : ", ") + said;
    shown.erase(std::next(last).base());
  }
  return said.empty() ? said : "For lack of width without: " + said;
}

std::string Table::ToText(const TextStyle& style) const {
  Cells cells(1);
  for (const Column& column : columns_) cells[0].push_back(column.title);
  for (const auto& row : rows_) {
    auto& printable = cells.emplace_back();
    for (const std::string& cell : row) printable.push_back(Printable(cell, kCellBytesMax));
  }
  std::vector<std::size_t> shown(columns_.size());
  std::iota(shown.begin(), shown.end(), std::size_t{0});
  std::string text;
  for (const std::string& said :
       {LeaveOutConstant(cells, shown), LeaveOutWide(cells, style, shown)}) {
    if (!said.empty()) text.append(style.indent, ' ').append(said).append("\n");
  }
  std::vector<std::size_t> widths = Widths(cells);
  Shrink(columns_, shown, style, widths);
  for (std::size_t r = 0; r < cells.size(); ++r) {
    std::string line;
    for (const std::size_t i : shown) {
      if (i != shown.front()) line.append(kGap, ' ');
      line += Pad(ShortenMiddle(cells[r][i], std::max<std::size_t>(widths[i], 4)), widths[i],
                  columns_[i].align);
    }
    TrimRight(line);
    const bool bold = r == 0 && style.colour;
    text.append(style.indent, ' ')
        .append(bold ? kBold : "")
        .append(line)
        .append(bold ? kPlain : "")
        .append("\n");
  }
  return text;
}

std::string Table::ToCsv(bool for_terminal) const {
  std::vector<std::string> titles;
  for (const Column& column : columns_) titles.push_back(column.title);
  std::string text = CsvLine(titles);
  for (auto row : rows_) {
    if (for_terminal) {
      for (std::string& cell : row) cell = Printable(cell, kCellBytesMax);
    }
    text += CsvLine(row);
  }
  return text;
}

std::string Table::ToMarkdown() const {
  std::string text = "|";
  for (const Column& column : columns_) text += " " + MarkdownCell(column.title) + " |";
  text += "\n|";
  for (const Column& column : columns_) text += column.align == Align::kLeft ? " --- |" : " ---: |";
  text += "\n";
  for (const auto& row : rows_) {
    text += "|";
    for (const std::string& cell : row) text += " " + MarkdownCell(cell) + " |";
    text += "\n";
  }
  return text;
}

std::size_t DisplayWidth(std::string_view text) {
  std::size_t columns = 0;
  for (std::size_t i = 0; i < text.size();) {
    const Glyph glyph = GlyphAt(text, i);
    columns += glyph.columns;
    i += glyph.bytes;
  }
  return columns;
}

std::string ShortenMiddle(std::string_view text, std::size_t width) {
  if (DisplayWidth(text) <= width) return std::string(text);
  const std::size_t kept = width - kEllipsis.size();
  const std::size_t head = kept / 2;
  return std::string(Head(text, head)).append(kEllipsis).append(Tail(text, kept - head));
}

std::string FormatBytes(std::uint64_t bytes) {
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 1023.95 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string FormatDuration(std::int64_t seconds) {
  if (seconds < 60) return fmt::format("{} s", std::max<std::int64_t>(seconds, 0));
  if (seconds < 3600) return fmt::format("{} min", seconds / 60);
  if (seconds < 86400) return fmt::format("{} h {} min", seconds / 3600, seconds / 60 % 60);
  return fmt::format("{} d {} h", seconds / 86400, seconds / 3600 % 24);
}

std::string FormatAgo(std::int64_t unix_nanos, std::int64_t now_unix_nanos) {
  if (unix_nanos == 0) return "-";
  const std::int64_t seconds = now_unix_nanos / 1'000'000'000 - unix_nanos / 1'000'000'000;
  return seconds <= 0 ? "now" : FormatDuration(seconds) + " ago";
}

}  // namespace statcollect::client
