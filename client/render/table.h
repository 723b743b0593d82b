// A table of text cells, printed with aligned columns, as CSV (RFC 4180) or as Markdown.
//
// Cells may hold untrusted text (names, configuration): aligned and Markdown tables pass it through
// Printable(), so that no escape sequence reaches a terminal. CSV keeps the bytes, because programs read it.
#ifndef STATCOLLECT_CLIENT_RENDER_TABLE_H_
#define STATCOLLECT_CLIENT_RENDER_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/text/number_text.h"

namespace statcollect::client {

enum class Align { kLeft, kRight };

struct Column {
  std::string title;
  Align align = Align::kLeft;
  bool shrinks = false;  // cut cells in the middle if the table is wider than the terminal
};

struct TextStyle {
  std::size_t width = 0;  // of the terminal in columns; 0: no limit, nothing is cut
  bool colour = false;    // header in bold
  std::size_t indent = 0;
};

class Table {
 public:
  explicit Table(std::vector<Column> columns);

  // Missing cells are empty; too many cells are a bug (assert).
  void AddRow(std::vector<std::string> cells);
  bool empty() const { return rows_.empty(); }
  std::size_t rows() const { return rows_.size(); }

  std::string ToText(
      const TextStyle& style = {}) const;  // a header line, one line per row, two blanks between columns
  // Header and rows, each ending with CR LF. `for_terminal`: makes control characters printable.
  std::string ToCsv(bool for_terminal = false) const;
  std::string ToMarkdown() const;

 private:
  std::vector<std::size_t> Widths(const std::vector<std::vector<std::string>>& cells,
                                  const TextStyle& style) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Columns that the text takes on a terminal: counts characters, not bytes; wide East Asian ones count twice.
// The text must be valid UTF-8.
std::size_t DisplayWidth(std::string_view text);
// Cuts text that is too long in the middle, with "..". width >= 4.
std::string ShortenMiddle(std::string_view text, std::size_t width);

// --- cells; numbers: proto/text/number_text.h
std::string FormatBytes(std::uint64_t bytes);      // "3.2 MiB"
std::string FormatDuration(std::int64_t seconds);  // "5 s", "3 min", "2 h 5 min", "4 d 2 h"
std::string FormatAgo(std::int64_t unix_nanos,
                      std::int64_t now_unix_nanos);  // "3 min ago"; "-" for 0; "now" if in the future

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_RENDER_TABLE_H_
