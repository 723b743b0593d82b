// A table of text cells, printed with aligned columns, as CSV (RFC 4180) or as Markdown.
//
// Cells may hold untrusted text (names, configuration): aligned and Markdown tables pass it through
// Printable(), so that no escape sequence reaches a terminal. CSV keeps the bytes, because programs
// read it.
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

// When aligned text has a column; CSV and Markdown have all.
enum class Use {
  kAlways,
  kIfItVaries,  // one with the same cell in every row is left out, and a line above the table says
                // it
  kIfItFits,    // if the table is wider than the terminal, the last of these goes first, and a line
                // says which went
};

struct Column {
  std::string title;
  Align align = Align::kLeft;
  // Cut cells in the middle if the table is wider than the terminal, after columns have been left
  // out, to 24 columns or more.
  bool shrinks = false;
  Use use = Use::kAlways;
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
  void KeepLast(std::size_t rows);  // no more than there are
  bool empty() const { return rows_.empty(); }
  std::size_t rows() const { return rows_.size(); }

  std::string ToText(const TextStyle& style = {})
      const;  // a header line, one line per row, two blanks between columns
  // Header and rows, each ending with CR LF. `for_terminal`: makes control characters printable.
  std::string ToCsv(bool for_terminal = false) const;
  std::string ToMarkdown() const;

 private:
  using Cells = std::vector<std::vector<std::string>>;  // the titles, then the rows
  // Both take away columns of `shown`, and return the line that says so.
  std::string LeaveOutConstant(const Cells& cells, std::vector<std::size_t>& shown) const;
  std::string LeaveOutWide(const Cells& cells, const TextStyle& style,
                           std::vector<std::size_t>& shown) const;
  // Of each column, also of those that are not shown.
  std::vector<std::size_t> Widths(const Cells& cells) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Columns that the text takes on a terminal: counts characters, not bytes; wide East Asian ones
// count twice. The text must be valid UTF-8.
std::size_t DisplayWidth(std::string_view text);
// Cuts text that is too long in the middle, with "..". width >= 4.
std::string ShortenMiddle(std::string_view text, std::size_t width);

// --- cells; numbers: proto/text/number_text.h
std::string FormatBytes(std::uint64_t bytes);      // "3.2 MiB"
std::string FormatDuration(std::int64_t seconds);  // "5 s", "3 min", "2 h 5 min", "4 d 2 h"
std::string FormatAgo(
    std::int64_t unix_nanos,
    std::int64_t now_unix_nanos);  // "3 min ago"; "-" for 0; "now" if in the future

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_RENDER_TABLE_H_
