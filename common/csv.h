// Fields of CSV files, for every writer.
#ifndef STATCOLLECT_COMMON_CSV_H_
#define STATCOLLECT_COMMON_CSV_H_

#include <string>
#include <string_view>

namespace statcollect {

// Adds a field (RFC 4180), in quotes if it contains a comma, a quote or an end of line.
// Spreadsheets take what begins with = + - @, a tab or a carriage return for a formula, which may
// run programs; so text that does, and is not a number, gets an apostrophe in front, and so does
// text that has that already. A reader who removes one apostrophe where /^'+[=+\-@\t\r]/ matches
// has the text back.
void AppendCsvField(std::string_view text, std::string& to);

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_CSV_H_
